"""Pings, piled-up items, large and wrong bodies on the routes that generate."""

from __future__ import annotations

import asyncio
import json

import pytest

from api.http.messages import Reply, StreamReply
from domain.chat.items import Progress, Text
from tests.support.builders.api import fake_api, first_piece, leave, pieces_of
from tests.support.builders.generation_requests import ANSWER, BODY, CHAT, MESSAGES, STREAM
from tests.support.clients.sse import events_in


def test_silent_stream_pings_although_progress_comes() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.05) as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            await first_piece(reply)

            async def progress() -> None:
                while True:
                    api.publish(job_id, Progress(phase="queued", done=0, total=1))
                    await asyncio.sleep(0.01)

            noise = asyncio.create_task(progress())
            for _ in range(3):
                assert [event.event for event in events_in(await first_piece(reply))] == ["ping"]
            noise.cancel()
            await asyncio.gather(noise, return_exceptions=True)
            api.publish(job_id, *ANSWER)
            assert events_in(await pieces_of(reply))[-1].event == "message_stop"

    asyncio.run(scenario())


def test_waiting_items_are_sent_in_one_piece_and_none_is_lost() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            await first_piece(reply)
            words = [Text(text=f"{n} ", ids=(n,)) for n in range(1000)]
            api.publish(job_id, ANSWER[0], *words, ANSWER[2])
            assert isinstance(reply, StreamReply)
            pieces = [piece async for piece in reply.pieces]
            assert len(pieces) < 20
            text = "".join(
                event.json["delta"]["text"]
                for event in events_in(b"".join(pieces))
                if event.event == "content_block_delta"
            )
            assert text == "".join(word.text for word in words)

    asyncio.run(scenario())


def test_large_body_is_parsed_off_the_event_loop() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            long = STREAM | {"messages": [{"role": "user", "content": "x" * 200_000}]}
            reply = await api.send("POST", MESSAGES, long)
            assert isinstance(reply, StreamReply)
            await leave(reply)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "message"),
    [(MESSAGES, "messages.0.role: Input"), (CHAT, "Input should be")],
)
def test_wrong_body_is_400_in_the_callers_dialect(path: str, message: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            bad = BODY | {"messages": [{"role": "robot", "content": "x"}]}
            reply = await api.send("POST", path, bad)
            assert isinstance(reply, Reply)
            assert reply.status == 400
            error = json.loads(reply.body)["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(message)
            assert not api.log.views.rows

    asyncio.run(scenario())
