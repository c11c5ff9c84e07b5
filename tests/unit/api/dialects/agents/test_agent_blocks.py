"""``/v1/agents/{id}/blocks``: contexts as maps of blocks, and their deletion."""

from __future__ import annotations

import asyncio
from typing import Any

from domain.events.agent import AgentForgotten
from domain.events.cache import AgentCacheSaved
from domain.events.event import Event
from domain.kv.hashing import BlockHash
from domain.values import AgentId, JobId, StreamName, WorkerId
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.job_events import draft

W1, W2 = WorkerId("w-1"), WorkerId("w-2")


def _name(n: int) -> BlockHash:
    return BlockHash(bytes([n]) * 32)


def _saved(*blocks: int, tail: int | None = None, tokens: int | None = None) -> AgentCacheSaved:
    return AgentCacheSaved(
        job=JobId(f"job-{blocks[-1:] or tail}"),
        fingerprint="sha256:0",
        blocks=tuple(_name(n).hex() for n in blocks),
        tail=None if tail is None else _name(tail).hex(),
        tokens=tokens or 256 * len(blocks) + (0 if tail is None else 7),
        checkpoints=(_name(200 + blocks[-1]).hex(),) if blocks else (),
    )


def _append(api: FakeApi, agent: str, *events: Event) -> None:
    stream = StreamName("agent-" + agent)
    version = len(api.log.load(stream))
    api.log.append(stream, [draft(event) for event in events], expected_version=version)


def _map(context: dict[str, Any]) -> list[tuple[int, int, bool | None, bool | None, int]]:
    return [
        (
            bytes.fromhex(block["name"])[0],
            block["tokens"],
            block["in_memory"],
            block["on_disk"],
            block["shared_with"],
        )
        for block in context["blocks"]
    ]


def test_a_context_is_a_map_of_its_blocks() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "ann", _saved(1, 2, 3, tail=4))
            _append(api, "bob", _saved(1, 2, 9))
            _append(api, "eve", _saved(1))
            api.broker.places.memory = {W1: {_name(1)}, W2: {_name(2)}}
            api.broker.places.disk = {W1: {_name(1)}, W2: {_name(3)}}
            found = await api.json("GET", "/v1/agents/ann/blocks")
            (context,) = found["contexts"]
            assert not found["registered"]
            assert context["tokens"] == 775
            assert context["shared_with"] == ["bob", "eve"]
            assert _map(context) == [
                (1, 256, True, True, 2),
                (2, 256, True, False, 1),
                (3, 256, False, True, 0),
                (4, 7, False, False, 0),
            ]

    asyncio.run(scenario())


def test_without_a_worker_the_places_are_unknown() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "ann", _saved(1))
            found = await api.json("GET", "/v1/agents/ann/blocks")
            assert _map(found["contexts"][0]) == [(1, 256, None, None, 0)]

    asyncio.run(scenario())


def test_beginnings_of_later_contexts_are_left_out() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "ann", _saved(1, 2), _saved(1, 5), _saved(1, 2, 3), _saved(tail=8))
            found = await api.json("GET", "/v1/agents/ann/blocks")
            kept = [[block[0] for block in _map(one)] for one in found["contexts"]]
            assert kept == [[8], [1, 2, 3], [1, 5]]

    asyncio.run(scenario())


def test_forgetting_deletes_only_what_no_other_agent_has() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "ann", _saved(1, 2, 3, tail=4))
            _append(api, "bob", _saved(1))
            names = {_name(n) for n in (1, 2, 3, 4, 203)}
            api.broker.places.memory, api.broker.places.disk = {W1: set(names)}, {W1: set(names)}
            done = await api.json("DELETE", "/v1/agents/ann/cache")
            assert (done["deleted"], done["blocks"]) == (True, 4)
            assert api.broker.places.memory == api.broker.places.disk == {W1: {_name(1)}}
            assert (await api.json("GET", "/v1/agents/ann/blocks"))["contexts"] == []
            assert (await api.json("GET", "/v1/agents/ann/cache"))["context"] is None
            assert api.event_types()[-1] == "AgentCacheEvicted"
            again = await api.json("DELETE", "/v1/agents/ann/cache")
            assert (again["deleted"], again["blocks"]) == (False, 0)

    asyncio.run(scenario())


def test_contexts_before_an_erasure_do_not_count() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            forgotten = AgentForgotten(
                agent=AgentId("ann"), jobs=1, payloads=0, payload_bytes=0, shared=0
            )
            _append(api, "ann", _saved(1), forgotten, _saved(2))
            found = await api.json("GET", "/v1/agents/ann/blocks")
            assert [[block[0] for block in _map(one)] for one in found["contexts"]] == [[2]]

    asyncio.run(scenario())


def test_an_unknown_agent_is_not_found_and_a_dead_broker_is_named() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for method, path in (("GET", "blocks"), ("DELETE", "cache")):
                await api.json(method, f"/v1/agents/nobody/{path}", status=404)
            _append(api, "ann", _saved(1))
            api.broker.down = True
            await api.json("GET", "/v1/agents/ann/blocks", status=503)
            await api.json("DELETE", "/v1/agents/ann/cache", status=503)
            assert api.event_types() == ["AgentCacheSaved"]

    asyncio.run(scenario())


def test_an_agent_that_was_created_here_is_registered() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("POST", "/v1/agents", {"id": "ann"}, status=201)
            found = await api.json("GET", "/v1/agents/ann/blocks")
            assert (found["registered"], found["contexts"]) == (True, [])
            await api.json("DELETE", "/v1/agents/ann")
            assert not (await api.json("GET", "/v1/agents/ann/blocks"))["registered"]

    asyncio.run(scenario())
