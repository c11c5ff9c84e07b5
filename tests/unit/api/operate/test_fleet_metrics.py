"""One scrape shows all workers, each under a name that its restarts keep."""

from __future__ import annotations

from typing import Any

import pytest

from api.operate.metrics import PLACES_MAX, FleetMetrics
from domain.engine.workers import TurnState, WorkerPulse
from domain.errors import QueueUnavailable
from domain.values import CacheFigures, JobId, WaitingFor, WaitingJob, WorkerId
from ops.observe.exposition import Readings
from tests.support.fakes.broker import FakeBroker


def pulse(worker: str, place: str, evicted: float = 0.0, **more: Any) -> WorkerPulse:
    metrics = {"eviction_total": {"ram": evicted}, "disk_cache_queued_blocks": {"": 1.0}}
    fields = {"pid": 1, "state": "ready", "model": None, "metrics": metrics, **more}
    return WorkerPulse(worker=WorkerId(worker), place=place, host="h", **fields)


def samples(fleet: FleetMetrics, name: str) -> dict[tuple[str, ...], float]:
    into = Readings()
    fleet.read(into)
    return next((dict(one.values) for one in into.all() if one.family.name == name), {})


def test_workers_of_several_machines_have_samples_of_their_own() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    broker.pulses.beat(pulse("worker-1", "a", 3))
    broker.pulses.beat(pulse("worker-2", "b", 4, state="loading"))
    assert samples(fleet, "eviction_total") == {("a", "ram"): 3, ("b", "ram"): 4}
    assert samples(fleet, "disk_cache_queued_blocks") == {("a",): 1, ("b",): 1}
    states = samples(fleet, "workers")
    assert (states["ready",], states["loading",], states["draining",]) == (1, 1, 0)


def test_worker_that_was_killed_and_its_successor_count_once() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    broker.pulses.beat(pulse("worker-1", "a", 3))
    broker.pulses.beat(pulse("worker-2", "a", 5))
    assert samples(fleet, "eviction_total") == {("a", "ram"): 5}
    assert samples(fleet, "workers")["ready",] == 1


def test_totals_of_a_place_without_a_worker_stay() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    broker.pulses.beat(pulse("worker-1", "a", 3))
    samples(fleet, "eviction_total")
    broker.pulses.fade()
    assert samples(fleet, "eviction_total") == {("a", "ram"): 3}
    assert samples(fleet, "disk_cache_queued_blocks") == {}
    assert samples(fleet, "workers")["ready",] == 0


def test_totals_stay_while_the_broker_is_away() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    broker.pulses.beat(pulse("worker-1", "a", 3))
    samples(fleet, "eviction_total")
    broker.down = True
    into = Readings()
    with pytest.raises(QueueUnavailable):
        fleet.read(into)
    assert [one.family.name for one in into.all()] == ["eviction_total"]


def test_places_are_bounded() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    found: dict[tuple[str, ...], float] = {}
    for number in range(PLACES_MAX + 5):
        broker.pulses.fade()
        broker.pulses.beat(pulse(f"worker-{number:03d}", f"place-{number:03d}", 1))
        found = samples(fleet, "eviction_total")
    assert len(found) == PLACES_MAX
    assert ("place-000", "ram") not in found


def test_worker_of_another_version_may_report_what_is_unknown_here() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    metrics = {"new_total": {"": 1.0}, "requests_running": {"": 1.0}}
    broker.pulses.beat(pulse("worker-1", "", metrics=metrics))
    assert samples(fleet, "worker_info") == {("worker-1", "h", "", "ready"): 1}


def test_places_and_cache_are_those_of_the_pulse() -> None:
    broker = FakeBroker()
    fleet = FleetMetrics(broker.pulses)
    jobs = tuple(JobId(f"job-{number}") for number in range(3))
    waiting = (WaitingJob(id=jobs[2], waiting_for=WaitingFor.MEMORY, position=0),)
    turns = TurnState(slots=8, interactive_reserved=2, running=jobs)
    cache = CacheFigures(
        ram_blocks=2,
        ram_used_bytes=75,
        ram_budget_bytes=100,
        ram_held_bytes=50,
        disk="paused",
        ram_live_bytes=30,
    )
    beat = pulse("worker-1", "a", waiting=waiting, turns=turns, cache=cache)
    broker.pulses.beat(beat)
    assert samples(fleet, "batch_places") == {("a",): 8}
    assert samples(fleet, "engine_waiting")["a", "memory"] == 1
    assert samples(fleet, "pool_utilization_ratio") == {("a",): 0.75}
    assert samples(fleet, "pool_pinned_ratio") == {("a",): 0.5}
    states = samples(fleet, "disk_cache_state")
    assert (states["a", "paused"], states["a", "on"]) == (1, 0)
    used = samples(fleet, "memory_used_bytes")
    assert (used["a", "live"], used["a", "kept"]) == (30, 45)
