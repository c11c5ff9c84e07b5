"""Forks of agents, and what happens to turns at once with others."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from api.http.messages import Reply
from domain.chat.request import Message
from domain.values import StreamName
from tests.support.builders.agent_requests import (
    AGENT,
    ask_turn,
    make_agent,
    refused,
    request_of,
    saved_context,
    take_turn,
)
from tests.support.builders.api import fake_api
from tests.support.polling import scaled


class Crash(Exception):
    """Nothing of ours runs any more after this."""


def test_of_two_turns_at_once_one_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            both = threading.Barrier(2)
            real = api.log.append

            def append(stream: StreamName, *arguments: Any, **named: Any) -> Any:
                if stream.startswith("job-") and named["expected_version"] == 0:
                    both.wait(timeout=scaled(60))  # both have read the history
                return real(stream, *arguments, **named)

            monkeypatch.setattr(api.log, "append", append)
            body = {"prompt": "hi", "expected_turn": 0}
            replies = await asyncio.gather(
                *(api.send("POST", f"{AGENT}/generate", body) for _ in range(2))
            )
            by_status = {one.status: one for one in replies}
            assert sorted(by_status) == [202, 409]
            won, lost = by_status[202], by_status[409]
            assert isinstance(won, Reply)
            assert isinstance(lost, Reply)
            winner = json.loads(won.body)["id"]
            assert (json.loads(lost.body)["turn"], json.loads(lost.body)["job"]) == (0, winner)
            states = {job: view.status.value for job, view in api.log.views.rows.items()}
            assert states.pop(winner) == "queued"
            assert list(states.values()) == ["cancelled"]
            assert api.take() == winner
            assert [one["job"] for one in (await api.json("GET", AGENT))["history"]] == [winner]

    asyncio.run(scenario())


def test_a_context_saved_meanwhile_does_not_refuse_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            real = api.log.append
            noise = iter(range(1))

            def append(stream: StreamName, *arguments: Any, **named: Any) -> Any:
                if stream == "agent-writer":
                    for _ in noise:
                        real(stream, [saved_context("job-x")], expected_version=1)
                return real(stream, *arguments, **named)

            monkeypatch.setattr(api.log, "append", append)
            await take_turn(api, "hi", "hello", expected_turn=0)
            assert (await api.json("GET", AGENT))["turns"] == 1

    asyncio.run(scenario())


def test_a_repeat_adds_the_turn_that_a_crash_left_without_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            real = api.log.append

            def append(stream: StreamName, *arguments: Any, **named: Any) -> Any:
                if stream == "agent-writer":
                    raise Crash  # the process ends between the two appends
                return real(stream, *arguments, **named)

            key = {"idempotency-key": "k1"}
            body = {"prompt": "One?"}
            monkeypatch.setattr(api.log, "append", append)
            with pytest.raises(Crash):
                await api.send("POST", f"{AGENT}/generate", body, headers=key)
            monkeypatch.undo()
            assert (await api.json("GET", AGENT))["history"] == []
            reply = await api.send("POST", f"{AGENT}/generate", body, headers=key)
            assert isinstance(reply, Reply)
            (turn,) = (await api.json("GET", AGENT))["history"]
            assert turn["job"] == json.loads(reply.body)["id"]

    asyncio.run(scenario())


def test_a_fork_has_its_own_history_after_a_turn() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            first = await take_turn(api, "One?", "1.")
            second = await take_turn(api, "Two?", "2.")
            child = await api.json(
                "POST", f"{AGENT}/fork", {"from_turn": 1, "id": "child"}, status=201
            )
            assert child["forked_from"] == {"agent_id": "writer", "turn": 1}
            assert (child["turns"], child["history"], child["system"]) == (1, [], "Be short.")
            other = await take_turn(api, "Two, but otherwise?", "II.", "/v1/agents/child")
            messages = request_of(api, other).messages
            # It begins with what the parent's second turn begins with: the blocks are the same.
            assert messages[:3] == request_of(api, second).messages[:3]
            assert messages[2] == Message(role="assistant", content="1.", origin=first)
            grandchild = await api.json(
                "POST", "/v1/agents/child/fork", {"from_turn": 1, "id": "grand"}, status=201
            )
            assert grandchild["forked_from"] == {"agent_id": "child", "turn": 1}
            last = await ask_turn(api, "Go on.", "/v1/agents/grand")
            assert request_of(api, last).messages[:3] == messages[:3]
            assert (await api.json("GET", AGENT))["turns"] == 2

    asyncio.run(scenario())


def test_a_fork_outlives_its_parent_and_another_one_of_its_name() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            first = await take_turn(api, "One?", "1.")
            await take_turn(api, "Two?", "2.")
            await api.json("POST", f"{AGENT}/fork", {"id": "child"}, status=201)
            await api.json("DELETE", AGENT)
            await make_agent(api, system="Another.")
            await take_turn(api, "Who?", "Me.")
            await api.json("POST", "/v1/agents/child/fork", {"from_turn": 1, "id": "g"}, status=201)
            messages = request_of(api, await ask_turn(api, "And?", "/v1/agents/g")).messages
            assert [one.content for one in messages] == ["Be short.", "One?", "1.", "And?"]
            assert messages[2].origin == first

    asyncio.run(scenario())


def test_invalid_forks_are_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            await ask_turn(api, "One?")
            for body, status in (
                ({"from_turn": 1}, 400),  # it has no answer yet
                ({"id": "writer"}, 400),
                ({"from_turn": -1}, 400),
            ):
                await refused(api, "POST", f"{AGENT}/fork", body, status=status)
            await api.json("POST", f"{AGENT}/fork", {"from_turn": 0, "id": "child"}, status=201)
            await refused(api, "POST", f"{AGENT}/fork", {"id": "child"}, status=409)
            await refused(api, "POST", "/v1/agents/none/fork", {"from_turn": 0}, status=404)
            job = await ask_turn(api, "Hello?", "/v1/agents/child")
            assert [one.content for one in request_of(api, job).messages] == ["Be short.", "Hello?"]

    asyncio.run(scenario())
