"""The jobs after any prefix of the log, and their numbers."""

from __future__ import annotations

from domain.audit.replay import JobsAsOf, fold_jobs_as_of
from domain.log.record import GENESIS_HASH, LogHead
from domain.values import JobStatus
from tests.support.builders.job_events import completed, started, submitted, worker_event
from tests.support.builders.log_events import append
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock


def past_of(log: InMemoryEventLog, through: int = 1000) -> JobsAsOf:
    return fold_jobs_as_of(log.read_all(limit=through))


def test_an_empty_log_has_no_jobs_and_no_instant() -> None:
    past = fold_jobs_as_of(iter(()))
    assert past == JobsAsOf(head=LogHead(position=0, hash=GENESIS_HASH), at=None, jobs=())
    assert past.counts() == dict.fromkeys(JobStatus, 0)


def test_the_head_is_the_last_event_also_if_it_is_of_no_job() -> None:
    clock = FakeClock()
    log = InMemoryEventLog(clock)
    append(log, "job-1", submitted())
    clock.advance(5)
    (last,) = append(log, "worker-1", worker_event())
    past = past_of(log)
    assert past.head == LogHead(position=2, hash=last.hash)
    assert past.at == "2026-01-01T00:00:05.000000Z"
    assert [job.id for job in past.jobs] == ["job-1"]
    first = past_of(log, 1)
    assert (first.head.position, first.at) == (1, "2026-01-01T00:00:00.000000Z")


def test_jobs_are_listed_newest_acceptance_first_whatever_happened_last() -> None:
    log = InMemoryEventLog()
    append(log, "job-2", submitted())
    append(log, "job-1", submitted())
    append(log, "job-3", submitted())
    append(log, "job-2", started(), completed())
    append(log, "job-3", started())
    assert [(job.id, job.status) for job in past_of(log).jobs] == [
        ("job-3", JobStatus.RUNNING),
        ("job-1", JobStatus.QUEUED),
        ("job-2", JobStatus.COMPLETED),
    ]
    assert past_of(log, 4).jobs[-1].status is JobStatus.RUNNING
    assert past_of(log).jobs == log.views.page(limit=9).jobs


def test_every_status_is_counted() -> None:
    log = InMemoryEventLog()
    append(log, "job-1", submitted())
    append(log, "job-2", submitted(), started())
    append(log, "job-3", submitted(), started(), completed())
    append(log, "job-4", submitted(), started(), completed())
    assert past_of(log).counts() == {
        JobStatus.QUEUED: 1,
        JobStatus.RUNNING: 1,
        JobStatus.COMPLETED: 2,
        JobStatus.FAILED: 0,
        JobStatus.CANCELLED: 0,
        JobStatus.EXPIRED: 0,
        JobStatus.HELD: 0,
    }
