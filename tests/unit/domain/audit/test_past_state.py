"""The state after an earlier event: jobs, agents, loaded models and admission of then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from domain.audit.past_state import MODEL_EVENTS_MAX, PastAgent, PastState, read_past_state
from domain.engine.control import AdmissionState
from domain.events.cache import AgentCacheRestored, AgentCacheSaved
from domain.events.event import Event
from domain.events.model import ModelLoaded, ModelUnloaded
from domain.events.worker import (
    AdmissionPaused,
    AdmissionResumed,
    DrainStarted,
    EngineTuned,
    WorkerLost,
    WorkerStopped,
)
from domain.log.record import GENESIS_HASH, EventFilter, LogHead, RecordedEvent
from domain.values import AgentId, JobId, JobStatus, WorkerId
from tests.support.builders.job_events import completed, started, submitted, worker_event
from tests.support.builders.log_events import append
from tests.support.fakes.event_log import InMemoryEventLog

ONE, TWO = WorkerId("worker-1"), WorkerId("worker-2")
TUNED = EngineTuned(batch_window_ms=None, max_batch_size=2, gap_max_ms=None)


def state_at(log: InMemoryEventLog, at: int | None = None, jobs_max: int = 10) -> PastState:
    return read_past_state(log, at=at, jobs_max=jobs_max)


def loaded(worker: WorkerId, model: str) -> ModelLoaded:
    return ModelLoaded(
        worker=worker,
        model=model,
        fingerprint="f",
        context_length=100,
        description="d",
        created_at="2026-01-01T00:00:00Z",
        load_ms=1.0,
    )


def saved(tokens: int) -> AgentCacheSaved:
    return AgentCacheSaved(job=JobId("job-1"), fingerprint="f", blocks=(), tail=None, tokens=tokens)


@pytest.mark.parametrize("at", [None, 0, 7])
def test_nothing_happened_in_an_empty_log(at: int | None) -> None:
    assert state_at(InMemoryEventLog(), at) == PastState(
        event=None,
        position=0,
        head=LogHead(position=0, hash=GENESIS_HASH),
        admission=AdmissionState.OPEN,
        loaded={},
        jobs=(),
        has_more=False,
        agents=(),
    )


def test_the_event_at_the_position_is_the_last_one_that_counts() -> None:
    log = InMemoryEventLog()
    first, second, third = append(log, "job-1", submitted(), started(), completed())
    head = LogHead(position=3, hash=third.hash)
    for at, event in ((1, first), (2, second), (3, third), (4, third), (None, third)):
        past = state_at(log, at)
        assert (past.position, past.event, past.head) == (event.position, event, head)
    before = state_at(log, 0)
    assert (before.position, before.event, before.jobs, before.head) == (0, None, (), head)


class _ArchivedLog(InMemoryEventLog):
    """A log whose events up to a position stand in an archive."""

    def __init__(self, through: int) -> None:
        super().__init__()
        self.through = through

    def select_before(
        self, wanted: EventFilter, *, before: int | None = None, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        found = super().select_before(wanted, before=before, limit=limit)
        return tuple(
            event for event in found if event.position == 1 or self.through < event.position
        )


def test_an_event_that_is_in_an_archive_is_not_replaced_by_an_earlier_one() -> None:
    log = _ArchivedLog(through=2)
    append(log, "job-1", submitted(), started(), completed())
    assert [state_at(log, at).event is None for at in (1, 2, 3)] == [False, True, False]
    assert state_at(log, 2).position == 2


def test_a_job_is_as_it_was_after_the_event() -> None:
    log = InMemoryEventLog()
    append(log, "job-1", submitted(), started(), completed())
    found = [state_at(log, at).jobs[0] for at in (1, 2, 3)]
    assert [job.status for job in found] == [
        JobStatus.QUEUED,
        JobStatus.RUNNING,
        JobStatus.COMPLETED,
    ]
    assert [job.position for job in found] == [1, 2, 3]
    assert found[-1] == log.views.get(JobId("job-1"))


def test_events_of_other_jobs_between_those_of_a_job_change_nothing() -> None:
    log = InMemoryEventLog()
    append(log, "job-1", submitted())
    append(log, "job-2", submitted())
    append(log, "job-1", started())
    append(log, "job-2", started())
    append(log, "job-1", completed())
    jobs = state_at(log, 4).jobs
    assert [(job.id, job.status) for job in jobs] == [
        ("job-2", JobStatus.RUNNING),
        ("job-1", JobStatus.RUNNING),
    ]


@pytest.mark.parametrize(
    ("jobs_max", "listed", "has_more"),
    [
        (0, [], True),
        (1, ["job-3"], True),
        (2, ["job-3", "job-2"], True),
        (3, ["job-3", "job-2", "job-1"], False),
        (4, ["job-3", "job-2", "job-1"], False),
    ],
)
def test_the_jobs_accepted_last_are_listed_newest_first(
    jobs_max: int, listed: Sequence[str], has_more: object
) -> None:
    log = InMemoryEventLog()
    for number in (1, 2, 3):
        append(log, f"job-{number}", submitted(), started())
    past = state_at(log, jobs_max=jobs_max)
    assert [job.id for job in past.jobs] == listed
    assert past.has_more is has_more


def test_as_many_jobs_are_listed_as_are_asked_for() -> None:
    log = InMemoryEventLog()
    for number in range(103):
        append(log, f"job-{number}", submitted())
    past = state_at(log, jobs_max=102)
    assert [job.id for job in past.jobs] == [f"job-{number}" for number in range(102, 0, -1)]
    assert past.has_more


def test_jobs_accepted_later_are_not_listed() -> None:
    log = InMemoryEventLog()
    for number in (1, 2, 3):
        append(log, f"job-{number}", submitted())
    past = state_at(log, 2, jobs_max=2)
    assert [job.id for job in past.jobs] == ["job-2", "job-1"]
    assert not past.has_more


def test_admission_is_that_of_the_last_change_before() -> None:
    log = InMemoryEventLog()
    append(log, "job-1", submitted())
    append(log, "engine", AdmissionPaused(), TUNED, DrainStarted(), AdmissionResumed())
    assert [state_at(log, at).admission for at in range(6)] == [
        AdmissionState.OPEN,
        AdmissionState.OPEN,
        AdmissionState.PAUSED,
        AdmissionState.PAUSED,
        AdmissionState.DRAINING,
        AdmissionState.OPEN,
    ]


def test_only_the_stream_of_the_engine_changes_the_admission() -> None:
    log = InMemoryEventLog()
    append(log, "elsewhere", AdmissionPaused())
    assert state_at(log).admission is AdmissionState.OPEN


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (ModelUnloaded(worker=ONE, model="a"), {TWO: "b"}),
        (WorkerStopped(worker=ONE), {TWO: "b"}),
        (WorkerLost(worker=ONE, pid=7), {TWO: "b"}),
        (loaded(ONE, "c"), {ONE: "c", TWO: "b"}),
        (WorkerLost(worker=WorkerId("worker-3"), pid=7), {ONE: "a", TWO: "b"}),
    ],
)
def test_a_worker_has_the_model_that_it_loaded_last_until_it_ends(
    end: Event, left: Mapping[WorkerId, str]
) -> None:
    log = InMemoryEventLog()
    append(log, "model-a", loaded(ONE, "a"), loaded(TWO, "b"))
    append(log, "worker-1", worker_event(), end)
    assert state_at(log).loaded == left
    assert state_at(log, 3).loaded == {ONE: "a", TWO: "b"}
    assert state_at(log, 1).loaded == {ONE: "a"}
    assert state_at(log, 0).loaded == {}


def test_the_models_are_found_in_the_latest_events_of_workers_and_models() -> None:
    log = InMemoryEventLog()
    further = [loaded(TWO, "b")] * (MODEL_EVENTS_MAX - 1)
    append(log, "model-a", loaded(ONE, "a"), *further)
    assert state_at(log).loaded == {ONE: "a", TWO: "b"}
    append(log, "model-a", loaded(TWO, "b"))
    assert state_at(log).loaded == {TWO: "b"}


def test_agents_are_counted_over_the_listed_jobs() -> None:
    log = InMemoryEventLog()
    append(log, "job-1", submitted(agent="a"), started(), completed())
    append(log, "job-2", submitted(agent="b"), started(), completed())
    append(log, "job-3", submitted())
    append(log, "job-4", submitted(agent="a"), started())
    append(log, "job-5", submitted(agent="a"))
    a = PastAgent(id=AgentId("a"), jobs=3, open_jobs=2, context_tokens=None)
    b = PastAgent(id=AgentId("b"), jobs=1, open_jobs=0, context_tokens=None)
    assert state_at(log).agents == (a, b)
    assert [agent.jobs for agent in state_at(log, jobs_max=2).agents] == [2]
    assert [agent.id for agent in state_at(log, 7).agents] == ["b", "a"]


def test_an_agent_has_the_context_that_was_saved_last_before() -> None:
    log = InMemoryEventLog()
    append(log, "job-1", submitted(agent="a"))
    append(log, "job-2", submitted(agent="b"))
    append(log, "agent-a", saved(100), saved(300))
    append(log, "agent-b", saved(7))
    restored = AgentCacheRestored(
        job=JobId("job-1"), source="ram", tokens=50, disk_tokens=0, prompt_tokens=60, took_ms=1.0
    )
    append(log, "agent-a", restored)
    found: list[dict[str, Any]] = [
        {agent.id: agent.context_tokens for agent in state_at(log, at).agents}
        for at in (2, 3, 4, 5, 6)
    ]
    assert found == [
        {"a": None, "b": None},
        {"a": 100, "b": None},
        {"a": 300, "b": None},
        {"a": 300, "b": 7},
        {"a": 300, "b": 7},
    ]
