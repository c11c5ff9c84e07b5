"""Conversations that name nobody, and two that have one name by accident."""

from __future__ import annotations

import asyncio
from typing import Any

from api.http.messages import StreamReply
from domain.chat.request import ChatRequest
from domain.values import Digest, JobId
from tests.support.builders.api import FakeApi, fake_api, first_piece, leave
from tests.support.builders.generation_requests import MESSAGES, STREAM


def _said(*texts: str, system: str = "Be kind.") -> list[dict[str, str]]:
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
    return [{"role": "system", "content": system}, *turns]


async def _ask(api: FakeApi, messages: Any, answer: str, **more: Any) -> JobId:
    body = {"messages": messages} | more
    job_id = JobId((await api.json("POST", "/v1/jobs", body, status=202))["id"])
    api.start(job_id)
    api.complete(job_id, answer)
    return job_id


def _origins(api: FakeApi, job_id: JobId) -> list[str]:
    view = api.log.views.rows[job_id]
    request = ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))
    return [turn.origin for turn in request.messages if turn.role == "assistant"]


def test_an_answer_is_found_again_by_how_its_conversation_begins() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _ask(api, _said("One?"), "Yes.")
            other = await _ask(api, _said("Two?"), "Yes.")
            named = await _ask(api, _said("One?"), "Yes.", agent_id="a")
            again = await _ask(api, _said("One?", "Yes.", "Sure?"), "Quite.")
            assert _origins(api, again) == [first]
            there = await _ask(api, _said("Two?", "Yes.", "Sure?"), "Quite.")
            assert _origins(api, there) == [other]
            mine = await _ask(api, _said("One?", "Yes.", "Sure?"), "Quite.", agent_id="a")
            assert _origins(api, mine) == [named]
            # Begun otherwise, it is nobody's answer; nothing is guessed.
            elsewhere = await _ask(api, _said("One?", "Yes.", "Sure?", system=""), "Quite.")
            assert _origins(api, elsewhere) == [""]

    asyncio.run(scenario())


def test_an_answer_whose_request_was_erased_has_no_owner() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _ask(api, _said("One?"), "Yes.")
            api.log.lose_payload(Digest(api.log.views.rows[first].submitted.request))
            again = await _ask(api, _said("One?", "Yes.", "Sure?"), "Quite.")
            assert _origins(api, again) == [""]

    asyncio.run(scenario())


def test_what_is_known_by_its_content_has_no_agent_and_joins_nothing() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            replies = [await api.send("POST", MESSAGES, STREAM) for _ in range(2)]
            for reply in replies:
                assert isinstance(reply, StreamReply)
                await first_piece(reply)
                await leave(reply)
            assert len({reply.headers["x-semantic-job"] for reply in replies}) == 2
            assert [view.submitted.agent for view in api.log.views.rows.values()] == [None, None]
            assert not any("auto-" in str(one.data) for one in api.log.read_all())
            assert not any(one.stream.startswith("agent-") for one in api.log.read_all())

    asyncio.run(scenario())


def test_two_conversations_of_one_name_are_answered_as_if_they_had_two() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            requests: dict[str, list[bytes]] = {}
            for names in (("same", "same"), ("a", "b")):
                asked = requests.setdefault(names[0], [])
                for name, question in zip(names, ("One?", "Two?"), strict=True):
                    await _ask(api, _said(question), f"Of {question}", agent_id=name, seed=1)
                for name, question in zip(names, ("One?", "Two?"), strict=True):
                    said = _said(question, f"Of {question}", "Sure?")
                    job = await _ask(api, said, "Quite.", agent_id=name, seed=1)
                    view = api.log.views.rows[job]
                    asked.append(_unattributed(api.log.get(Digest(view.submitted.request))))
            # What the model is asked is the same: the name is no part of it.
            assert requests["same"] == requests["a"]

    asyncio.run(scenario())


def _unattributed(payload: bytes) -> bytes:
    request = ChatRequest.from_bytes(payload)
    assert any(turn.origin for turn in request.messages)
    return b"\n".join(f"{turn.role}:{turn.content}".encode() for turn in request.messages)
