"""What ``/health/ready`` replies to, and with which status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import KEYLESS, Access, Caller, Reply, Request
from domain.engine.control import ENGINE_STREAM
from domain.engine.workers import WorkerPulse
from domain.events.model import ModelServed
from domain.events.worker import AdmissionPaused, DrainStarted
from domain.model.swap import (
    Configure,
    RequestSwap,
)
from domain.model.swaps import ModelSwaps
from domain.values import CacheFigures, WorkerId
from ops.data_dir.free_space import DiskFloor
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import CARD, FakeApi, fake_api
from tests.support.builders.job_events import draft
from tests.support.fakes.time import SequentialIds

READY = 200
REFUSING = 503
BUDGET_BYTES = 1000


def pulse(
    api: FakeApi,
    state: str = "ready",
    *,
    has_card: bool = True,
    target: str | None = None,
    **cache: Any,
) -> None:
    figures = CacheFigures(
        ram_blocks=1, ram_used_bytes=BUDGET_BYTES, ram_budget_bytes=BUDGET_BYTES, **cache
    )
    card = CARD if has_card else None
    beat = WorkerPulse(
        worker=WorkerId("w1"), pid=1, state=state, model=card, target=target, cache=figures
    )
    api.broker.pulses.beat(beat)


def ready(prepare: Any, status: int) -> dict[str, Any]:
    async def scenario() -> dict[str, Any]:
        async with fake_api() as api:
            prepare(api)
            health: dict[str, Any] = await api.json("GET", "/health/ready", status=status)
            return health

    return asyncio.run(scenario())


def test_all_is_well() -> None:
    health = ready(pulse, READY)
    assert (health["status"], health["reasons"]) == ("ok", [])
    assert set(health["checks"].values()) == {"ok"}


@pytest.mark.parametrize("state", ["unloaded", "loading"])
def test_model_that_the_next_request_waits_for_is_ready(state: str) -> None:
    health = ready(lambda api: pulse(api, state), READY)
    assert health["status"] == "ok"
    assert health["checks"]["model"] == state


@pytest.mark.parametrize(("target", "shown"), [(None, "the model"), ("night", "night")])
def test_first_load_is_not_ready_and_names_the_model(target: str | None, shown: str) -> None:
    health = ready(lambda api: pulse(api, "loading", has_card=False, target=target), REFUSING)
    assert health["reasons"] == [f"model: a worker is loading {shown}"]


@pytest.mark.parametrize(("held", "status"), [(899, "ok"), (900, "degraded"), (1000, "degraded")])
def test_memory_counts_what_cannot_be_freed_at_once(held: int, status: str) -> None:
    health = ready(lambda api: pulse(api, ram_held_bytes=held), READY)
    assert health["status"] == status
    assert any(reason.startswith("memory: 9") for reason in health["reasons"]) == (held == 900)


def test_disk_that_takes_no_contexts_degrades() -> None:
    health = ready(lambda api: pulse(api, disk="paused"), READY)
    assert health["status"] == "degraded"
    assert health["reasons"] == ["disk: contexts are not saved: the disk fails or is full"]


def test_full_disk_degrades_before_the_log_fails() -> None:
    def prepare(api: FakeApi) -> None:
        pulse(api)
        api.use(disk=DiskFloor(measure=lambda: 10**8, cache_min_bytes=10**9))

    health = ready(prepare, READY)
    assert health["reasons"] == [
        "disk: 0.1 GB are free, less than 1.0 GB: contexts are deleted from the disk"
    ]


def test_disk_below_its_floor_refuses() -> None:
    def prepare(api: FakeApi) -> None:
        pulse(api)
        api.use(disk=DiskFloor(measure=lambda: 2**20, free_min_bytes=2**21))

    (reason,) = ready(prepare, REFUSING)["reasons"]
    assert reason == (
        "disk: new work is refused: 1 MiB are free on the disk of the event log, "
        "less than 2 MiB (disk.free_min_mb)"
    )


def test_log_that_takes_no_events_refuses() -> None:
    def prepare(api: FakeApi) -> None:
        pulse(api)
        api.log.unavailable = True

    assert ready(prepare, REFUSING)["checks"]["log"] == "the disk is full"


@pytest.mark.parametrize(
    ("event", "status", "reason"),
    [
        (AdmissionPaused(reason="a backup"), READY, "admission: paused: a backup"),
        (DrainStarted(), REFUSING, "admission: draining"),
    ],
)
def test_operators_stop_the_admission(event: Any, status: int, reason: str) -> None:
    def prepare(api: FakeApi) -> None:
        pulse(api)
        api.log.append(ENGINE_STREAM, [draft(event)], expected_version=0)

    assert ready(prepare, status)["reasons"] == [reason]


def test_process_that_ends_refuses() -> None:
    def prepare(api: FakeApi) -> None:
        pulse(api)
        api.app.draining.set()

    assert ready(prepare, REFUSING)["reasons"] == ["admission: the api is draining"]


def test_swap_degrades_also_while_no_worker_has_a_model() -> None:
    def prepare(api: FakeApi) -> None:
        swaps = ModelSwaps(log=api.log, ids=SequentialIds())
        swaps.apply(Configure(place="here", model="a", choice="", swap="swap-a"))
        swaps.apply(ModelServed(worker=WorkerId("w1"), model="a"))
        swaps.apply(RequestSwap(swap="swap-b", model="b"))

    health = ready(prepare, READY)
    assert health["status"] == "degraded"
    assert health["reasons"] == ["model: swapping to b: requested"]


def test_status_has_the_jobs_the_head_of_the_log_and_the_figures_of_a_worker() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            empty = await api.json("GET", "/admin/status")
            assert (empty["model"], empty["cache"], empty["queue_depth"]) == (None, None, 0)
            await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            pulse(api, ram_held_bytes=7)
            shown = await api.json("GET", "/admin/status")
            head = api.log.head()
            assert shown["model"] == CARD.id
            assert shown["cache"]["ram_held_bytes"] == 7
            assert (shown["jobs"]["queued"], shown["queue_depth"]) == (1, 1)
            assert shown["log"] == {"position": head.position, "hash": head.hash}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("caller", "shown"),
    [
        (KEYLESS, {"name": None, "scope": "admin", "may": list(Access), "sees_all": True}),
        (
            Caller(name="ann", scope=KeyScope.OWN, is_alone=False),
            {"name": "ann", "scope": "own", "may": ["read", "change"], "sees_all": False},
        ),
        (
            Caller(name="bob", scope=KeyScope.READ, is_alone=False),
            {"name": "bob", "scope": "read", "may": ["read", "read_all"], "sees_all": True},
        ),
    ],
)
def test_a_key_learns_its_scope_and_what_it_may_do(caller: Caller, shown: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = Request(id="req-1", method="GET", path="/", caller=caller)
            reply = await api.send("GET", "/admin/key", request=request)
            assert isinstance(reply, Reply)
            assert json.loads(reply.body) == {"object": "key", **shown}

    asyncio.run(scenario())
