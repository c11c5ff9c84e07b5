"""``POST /admin/models/{name}/load`` and ``GET /admin/swaps/{id}``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.http.messages import Reply, StreamReply
from domain.engine.workers import ControlTopic, WorkerPulse
from domain.events.model import ModelServed, ModelSwapAdvanced
from domain.model.registry import ModelEntry, ModelRegistry
from domain.model.swap import (
    RollBack,
)
from domain.model.wanted_model import SwapState
from domain.values import WorkerId
from tests.support.builders.api import FakeApi, fake_api

WORKER = WorkerId("w1")
REGISTRY = ModelRegistry(
    [
        ModelEntry(name="a", source="/a", aliases=("first",)),
        ModelEntry(name="b", source="b"),
    ]
)


async def load(api: FakeApi, name: str, *, status: int = 202, query: str = "") -> Any:
    api.use(registry=lambda: REGISTRY)
    return await api.json("POST", f"/admin/models/{name}/load{query}", status=status)


def advance(api: FakeApi, swap_id: str, *phases: SwapState) -> None:
    for phase in phases:
        api.app.swaps.apply(ModelSwapAdvanced(swap=swap_id, worker=WORKER, phase=phase))


def test_load_records_a_swap_and_notifies_the_workers() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            swap = await load(api, "first", query="?drain_s=7")
            assert (swap["model"], swap["state"], swap["drain_s"]) == ("a", "requested", 7)
            assert api.event_types() == ["ModelSwapRequested"]
            assert api.log.read_all()[0].correlation_id == "req-1"
            assert api.broker.signals.topics == [ControlTopic.MODELS]
            shown = await api.json("GET", f"/admin/swaps/{swap['id']}")
            assert shown == swap

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["w1", "engine-1"])
def test_swap_of_one_worker_leaves_the_others_alone(name: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.pulses.beat(
                WorkerPulse(worker=WORKER, pid=1, place="engine-1", state="ready", model=None)
            )
            swap = await load(api, "b", query=f"?worker={name}")
            assert (swap["model"], swap["worker"]) == ("b", "engine-1")
            assert await api.json("GET", f"/admin/swaps/{swap['id']}") == swap
            swaps = api.app.swaps
            assert (swaps.read("engine-1").model, swaps.read().model) == ("b", None)
            missing = await load(api, "b", status=404, query="?worker=engine-2")
            assert "engine-1" in missing["detail"]

    asyncio.run(scenario())


def test_reply_has_the_address_of_the_swap() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(registry=lambda: REGISTRY)
            reply = await api.send("POST", "/admin/models/a/load")
            assert isinstance(reply, Reply)
            location = reply.headers["location"]
            assert (await api.json("GET", location))["model"] == "a"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["missing", "claude-opus-4", "a%00b", "..", "é" * 300])
def test_unknown_name_is_404_and_lists_the_names_that_exist(name: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            refused = await load(api, name, status=404)
            assert "a, b" in str(refused)
            assert not api.event_types()

    asyncio.run(scenario())


@pytest.mark.parametrize("query", ["?drain_s=-1", "?drain_s=x", "?drain_s=86401"])
def test_rubbish_drain_is_refused(query: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await load(api, "a", status=400, query=query)
            assert not api.event_types()

    asyncio.run(scenario())


def test_swap_shows_its_phases_and_why_it_rolled_back() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = (await load(api, "a"))["id"]
            advance(api, first, SwapState.LOADING)
            api.app.swaps.apply(ModelServed(worker=WORKER, model="a"))
            done = await api.json("GET", f"/admin/swaps/{first}")
            assert (done["state"], done["timings_ms"]["total"]) == ("done", 0.0)
            assert done["timings_ms"]["save"] is None
            second = (await load(api, "b"))["id"]
            advance(api, second, SwapState.DRAINING)
            api.app.swaps.apply(RollBack(swap=second, why="broken"))
            shown = await api.json("GET", f"/admin/swaps/{second}")
            assert (shown["state"], shown["before"], shown["why"]) == ("rolled_back", "a", "broken")

    asyncio.run(scenario())


def test_stream_has_each_state_and_ends_with_the_swap() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            swap_id = (await load(api, "a"))["id"]
            reply = await api.send(
                "GET", f"/admin/swaps/{swap_id}", headers={"accept": "text/event-stream"}
            )
            assert isinstance(reply, StreamReply)
            states = []
            async for piece in reply.pieces:
                states.append(piece.decode().partition('"state":"')[2].partition('"')[0])
                if states == ["requested"]:
                    advance(api, swap_id, SwapState.LOADING)
                elif states[-1] == "loading":
                    api.app.swaps.apply(ModelServed(worker=WORKER, model="a"))
            assert states == ["requested", "loading", "done"]

    asyncio.run(scenario())


def test_unknown_swap_is_404() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("GET", "/admin/swaps/swap-" + "0" * 32, status=404)
            await api.json("GET", "/admin/swaps/rubbish", status=404)

    asyncio.run(scenario())
