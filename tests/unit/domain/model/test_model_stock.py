"""The registered models, from the log, the workers and the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from domain.engine.workers import WorkerPulse, WorkerState
from domain.events.model import ModelLoaded, ModelLoadFailed, ModelUnloaded
from domain.log.record import EventFilter, RecordedEvent
from domain.model.registry import (
    RENEWAL_S,
    ModelEntry,
    ModelFiles,
    ModelRegistry,
    ModelState,
    ModelStatus,
    ModelStock,
    ServingModels,
)
from domain.values import ModelCard, WorkerId
from tests.support.builders.job_events import worker_event
from tests.support.builders.log_events import append
from tests.support.fakes.broker import FakeWorkerPulses
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.outage import Outage
from tests.support.fakes.time import FakeClock

NOON = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = WorkerId("worker-1")
A, B = ModelEntry(name="a", source="/models/a"), ModelEntry(name="b", source="/models/b")
FILES = ModelFiles(directory="/models/a", size_bytes=5, context_length=4096, written_at=NOON)
#: Events that one read of the log returns.
PAGE_EVENTS = 500


class _CountedLog(InMemoryEventLog):
    """A log that records from which position on it is read."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        super().__init__(clock)
        self.reads: list[int] = []

    def select(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[RecordedEvent, ...]:
        self.reads.append(after)
        return super().select(wanted, after=after, limit=limit)


def card(name: str) -> ModelCard:
    return ModelCard(
        id=name,
        fingerprint=f"print-{name}",
        context_length=100,
        description="d",
        created_at="2026-01-01T00:00:00Z",
    )


def loaded(name: str) -> ModelLoaded:
    return ModelLoaded(
        worker=WORKER,
        model=name,
        fingerprint=f"print-{name}",
        context_length=100,
        description="d",
        created_at="2026-01-01T00:00:00Z",
        load_ms=1.0,
    )


def failed(name: str) -> ModelLoadFailed:
    return ModelLoadFailed(worker=WORKER, model=name, message=f"{name} does not fit")


def pulse(
    worker: str, model: ModelCard | None, state: str = WorkerState.READY.value
) -> WorkerPulse:
    return WorkerPulse(worker=WorkerId(worker), pid=1, state=state, model=model)


def stock(
    log: InMemoryEventLog | None = None, pulses: FakeWorkerPulses | None = None
) -> ModelStock:
    return ModelStock(
        log=log,
        serving=None if pulses is None else ServingModels(pulses, FakeClock()),
        registry=lambda: ModelRegistry([A, B]),
        inspect=lambda entry: FILES if entry is A else None,
    )


def states(found: Sequence[ModelStatus]) -> list[tuple[str, ModelState]]:
    return [(model.entry.name, model.state) for model in found]


def test_without_a_log_and_a_service_only_the_files_count() -> None:
    found = stock().all()
    assert states(found) == [("a", ModelState.AVAILABLE), ("b", ModelState.MISSING)]
    assert [model.files for model in found] == [FILES, None]
    assert [model.card for model in found] == [None, None]


def test_the_log_tells_which_model_was_loaded_when_and_which_failed() -> None:
    clock = FakeClock()
    log = _CountedLog(clock)
    append(log, "model-b", loaded("b"))
    clock.advance(5)
    append(log, "model-a", failed("a"))
    b, a = stock(log).all()
    assert states([b, a]) == [("b", ModelState.MISSING), ("a", ModelState.FAILED)]
    assert (b.past.loaded_at, b.card) == (NOON, card("b"))
    assert (a.past.failed_at, a.failure) == (NOON + timedelta(seconds=5), "a does not fit")


def test_the_past_of_a_model_goes_on_from_what_was_read_before() -> None:
    log = _CountedLog()
    models = stock(log)
    append(log, "model-a", loaded("a"))
    first = {model.entry.name: model for model in models.all()}
    assert (first["a"].card, first["b"].card) == (card("a"), None)
    append(log, "model-a", failed("a"))
    append(log, "model-b", loaded("b"))
    second = {model.entry.name: model for model in models.all()}
    assert (second["a"].card, second["a"].failure) == (card("a"), "a does not fit")
    assert second["b"].card == card("b")
    assert models.all() == tuple(second.values())


def test_events_are_read_once() -> None:
    log = _CountedLog()
    models = stock(log)
    append(log, "model-a", loaded("a"), ModelUnloaded(worker=WORKER, model="a"))
    append(log, "worker-1", worker_event())
    append(log, "model-b", loaded("b"))
    models.all()
    append(log, "worker-1", worker_event())
    models.all()
    models.all()
    assert log.reads == [0, 4, 4]


@pytest.mark.parametrize(
    ("earlier", "reads"),
    [
        (PAGE_EVENTS - 2, [0]),
        (PAGE_EVENTS - 1, [0, PAGE_EVENTS]),
        (PAGE_EVENTS, [0, PAGE_EVENTS]),
        (2 * PAGE_EVENTS, [0, PAGE_EVENTS, 2 * PAGE_EVENTS]),
    ],
)
def test_the_log_is_read_page_by_page_to_its_end(earlier: int, reads: Sequence[int]) -> None:
    log = _CountedLog()
    append(log, "model-a", *([loaded("a")] * earlier), loaded("b"))
    found = stock(log).all()
    assert {model.entry.name: model.card for model in found} == {"a": card("a"), "b": card("b")}
    assert log.reads == reads


def test_models_of_live_workers_come_first() -> None:
    pulses = FakeWorkerPulses()
    pulses.beat(pulse("worker-1", card("b")))
    pulses.beat(pulse("worker-2", card("z")))
    found = stock(pulses=pulses).all()
    assert states(found) == [
        ("b", ModelState.LOADED),
        ("z", ModelState.LOADED),
        ("a", ModelState.AVAILABLE),
    ]


def test_the_registry_is_read_at_each_call() -> None:
    entries = [A]
    models = ModelStock(
        log=None,
        serving=None,
        registry=lambda: ModelRegistry(entries),
        inspect=lambda entry: replace(FILES, directory=entry.source),
    )
    assert [model.entry for model in models.all()] == [A]
    entries.append(B)
    assert [model.entry for model in models.all()] == [A, B]
    assert [model.files and model.files.directory for model in models.all()] == [
        "/models/a",
        "/models/b",
    ]
    assert models.registry().entries() == (A, B)


@pytest.mark.parametrize(
    ("state", "serves"),
    [
        (WorkerState.READY, True),
        (WorkerState.DRAINING, True),
        (WorkerState.SWAPPING, True),
        (WorkerState.LOADING, False),
        (WorkerState.UNLOADED, False),
    ],
)
def test_a_worker_serves_the_model_of_its_pulse_in_some_states(
    state: WorkerState, serves: object
) -> None:
    pulses = FakeWorkerPulses()
    pulses.beat(pulse("worker-1", card("a"), state.value))
    pulses.beat(pulse("worker-2", None))
    pulses.beat(pulse("worker-3", card("b")))
    found = ServingModels(pulses, FakeClock()).cards()
    assert found == [*([card("a")] if serves else []), card("b")]


def test_a_ready_worker_stays_while_the_broker_is_away_and_until_it_has_renewed_its_pulse() -> None:
    outage, clock = Outage(), FakeClock()
    pulses = FakeWorkerPulses(outage)
    serving = ServingModels(pulses, clock)
    models = ModelStock(
        log=None, serving=serving, registry=lambda: ModelRegistry([A, B]), inspect=lambda _: FILES
    )
    pulses.beat(pulse("worker-1", card("a")))
    loaded_first = [("a", ModelState.LOADED), ("b", ModelState.AVAILABLE)]
    assert states(models.all()) == loaded_first

    outage.down = True
    clock.advance(60)
    assert states(models.all()) == loaded_first

    outage.down = False
    pulses.fade()  # the broker has lost the pulse
    clock.advance(RENEWAL_S / 2)
    assert states(models.all()) == loaded_first
    pulses.beat(pulse("worker-1", card("a")))
    clock.advance(RENEWAL_S)
    assert states(models.all()) == loaded_first


def test_a_worker_that_ended_while_the_broker_was_away_goes_after_it() -> None:
    outage, clock = Outage(), FakeClock()
    pulses = FakeWorkerPulses(outage)
    serving = ServingModels(pulses, clock)
    pulses.beat(pulse("worker-1", card("a")))
    assert serving.cards() == [card("a")]
    outage.down = True
    assert serving.cards() == [card("a")]

    outage.down = False
    pulses.fade()
    pulses.beat(pulse("worker-2", card("b")))
    assert serving.cards() == [card("a"), card("b")]
    clock.advance(RENEWAL_S)
    assert serving.cards() == [card("b")]


def test_what_a_worker_reports_after_the_outage_counts_at_once() -> None:
    outage, clock = Outage(), FakeClock()
    pulses = FakeWorkerPulses(outage)
    serving = ServingModels(pulses, clock)
    pulses.beat(pulse("worker-1", card("a")))
    assert serving.cards() == [card("a")]
    outage.down = True
    assert serving.cards() == [card("a")]
    outage.down = False
    pulses.beat(pulse("worker-1", None, WorkerState.DRAINING.value))
    assert serving.cards() == []


def test_without_an_outage_an_expired_pulse_counts_at_once() -> None:
    pulses = FakeWorkerPulses()
    serving = ServingModels(pulses, FakeClock())
    pulses.beat(pulse("worker-1", card("a")))
    assert serving.cards() == [card("a")]
    pulses.fade()
    assert serving.cards() == []
