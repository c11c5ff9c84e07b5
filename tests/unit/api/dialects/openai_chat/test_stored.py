"""Chat completions with ``store: true``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from openai.types.chat import ChatCompletion

from api.http.messages import Reply
from domain.values import JobId
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.generation_requests import ANSWER, CHAT
from tests.support.polling import eventually

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def _made(api: FakeApi, answer: str = "Hello", **more: Any) -> Any:
    before = set(api.log.views.rows)
    asking = asyncio.create_task(api.send("POST", CHAT, BODY | more))
    (job_id,) = await eventually(lambda: set(api.log.views.rows) - before)
    await api.queued(job_id)
    api.start(JobId(job_id))
    api.complete(job_id, answer)
    api.publish(job_id, *ANSWER)
    reply = await asking
    assert isinstance(reply, Reply)
    return json.loads(reply.body)


def test_a_stored_completion_is_found_again() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await _made(api, store=True, metadata={"a": "b"})
            found = await api.json("GET", f"{CHAT}/{made['id']}")
            assert ChatCompletion.model_validate(found).choices[0].message.content == "Hello"
            assert found["metadata"] == {"a": "b"}
            assert (found["model"], found["usage"]) == (made["model"], made["usage"])
            (message,) = (await api.json("GET", f"{CHAT}/{made['id']}/messages"))["data"]
            assert (message["role"], message["content"]) == ("user", "hi")
            changed = await api.json("POST", f"{CHAT}/{made['id']}", {"metadata": {"c": "d"}})
            assert changed == found | {"metadata": {"c": "d"}}
            assert [one["id"] for one in (await api.json("GET", f"{CHAT}?metadata[c]=d"))["data"]]
            gone = await api.json("DELETE", f"{CHAT}/{made['id']}")
            assert gone["deleted"] is True
            await api.json("GET", f"{CHAT}/{made['id']}", status=404)
            assert (await api.json("GET", CHAT))["data"] == []

    asyncio.run(scenario())


def test_parts_of_a_message_stand_apart() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
            turns = [{"role": "user", "content": parts}, {"role": "user", "content": "c"}]
            made = await _made(api, store=True, messages=turns)
            path = f"{CHAT}/{made['id']}/messages"
            listed = await api.json("GET", f"{path}?limit=1")
            assert (listed["data"][0]["content_parts"], listed["has_more"]) == (parts, True)
            assert listed["data"][0]["content"] is None
            listed = await api.json("GET", f"{path}?after={listed['last_id']}")
            assert [one["content"] for one in listed["data"]] == ["c"]

    asyncio.run(scenario())


def test_a_list_has_what_was_stored_and_no_more() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _made(api, store=True, metadata={"a": "b"}, seed=1)
            await _made(api, seed=2)
            second = await _made(api, store=True, model="n", seed=3)

            async def listed(query: str) -> list[str]:
                return [one["id"] for one in (await api.json("GET", CHAT + query))["data"]]

            assert await listed("") == [first["id"], second["id"]]
            assert await listed("?order=desc&limit=1") == [second["id"]]
            assert await listed(f"?after={first['id']}") == [second["id"]]
            assert await listed("?after=chatcmpl-0") == []
            assert await listed("?model=n") == [second["id"]]
            assert await listed("?metadata[a]=b") == [first["id"]]

    asyncio.run(scenario())


def test_what_was_not_stored_or_has_no_answer_is_not_found() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await _made(api, seed=1)
            await api.json("GET", f"{CHAT}/{made['id']}", status=404)
            await api.json("GET", f"{CHAT}/chatcmpl-{'0' * 32}", status=404)
            refusal = await api.json("POST", CHAT, BODY | {"store": True, "n": 2}, status=400)
            assert refusal["error"]["param"] == "store"

    asyncio.run(scenario())
