"""Tool calls of a job that is over, for those who ask later."""

from __future__ import annotations

import asyncio

from domain.chat.generation import EmittedCall
from tests.support.builders.api import fake_api, pieces_of
from tests.support.clients.sse import events_in

_CALLS = (
    EmittedCall(id="toolu_0", name="Bash", arguments='{"command": "ls"}', is_complete=True),
    EmittedCall(id="toolu_1", name="Bash", arguments='{"comm'),
)


def test_calls_are_part_of_the_output_of_a_job_and_of_its_repeated_stream() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            api.start(job["id"])
            api.complete(job["id"], "Look.", _CALLS)
            shown = await api.json("GET", f"/v1/jobs/{job['id']}")
            assert [call["id"] for call in shown["output"]["tool_calls"]] == ["toolu_0", "toolu_1"]
            stream = await api.send("GET", f"/v1/jobs/{job['id']}/stream")
            kinds = [event.json["kind"] for event in events_in(await pieces_of(stream))]
            assert kinds == [
                "text", "tool_start", "tool_input", "tool_end", "tool_start", "tool_input",
                "finished",
            ]  # fmt: skip

    asyncio.run(scenario())
