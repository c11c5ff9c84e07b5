"""The jobs that ended last, as events end, retry and end them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from domain.audit.recent_ends import (
    BEHIND_MAX,
    DIAGNOSED_MAX,
    KEPT_MAX,
    PAGE_EVENTS,
    CacheDiagnosis,
    RecentEnds,
)
from domain.events.event import Event
from domain.events.job import JobAttached, JobCancelled, JobExpired, JobFailed, JobRetried
from domain.log.record import LogHead
from domain.values import JobId, JobStatus, Owner, Usage
from tests.support.builders.job_events import completed, started, submitted, worker_event
from tests.support.builders.log_events import append
from tests.support.fakes.event_log import InMemoryEventLog

FAILED = JobFailed(error="e", message="m")
RETRIED = JobRetried(reason="api")
FOUND = CacheDiagnosis(prompt_tokens=9, cached_tokens=4, source="ram")


class _LongLog(InMemoryEventLog):
    """A log whose last events belong to no job."""

    def __init__(self) -> None:
        super().__init__()
        self.further = 0

    def head(self) -> LogHead:
        head = super().head()
        return replace(head, position=head.position + self.further)


class _World:
    def __init__(self) -> None:
        self.log = _LongLog()
        self.diagnosed: list[JobId] = []
        self.unknown: set[str] = set()
        self.ends = self.reader()

    def reader(self) -> RecentEnds:
        return RecentEnds(self.log, self.log.views, self._diagnose)

    def _diagnose(self, job_id: JobId) -> CacheDiagnosis | None:
        self.diagnosed.append(job_id)
        return None if job_id in self.unknown else FOUND

    def end(self, *jobs: str, event: Event = FAILED, owner: str | None = None) -> None:
        for job in jobs:
            accepted = replace(submitted(), owner=None if owner is None else Owner(owner))
            append(self.log, job, accepted, event)

    def latest(self, limit: int = 1000, owner: str | None = None) -> list[str]:
        found = self.ends.latest(limit, None if owner is None else Owner(owner))
        return [str(job.view.id) for job in found]


@pytest.fixture
def world() -> _World:
    return _World()


def names(numbers: Sequence[int]) -> list[str]:
    return [f"job-{number}" for number in numbers]


def test_the_first_call_reads_the_jobs_that_have_ended_the_latest_first(world: _World) -> None:
    assert world.latest() == []
    append(world.log, "job-1", submitted())
    world.end("job-2")
    append(world.log, "job-3", submitted(), started())
    append(world.log, "job-1", FAILED)
    world.end("job-4")
    world.ends = world.reader()
    assert world.latest() == ["job-4", "job-1", "job-2"]


@pytest.mark.parametrize(
    "event",
    [
        completed(),
        FAILED,
        JobCancelled(attempt=0, usage=Usage()),
        JobExpired(deadline="2026-01-01T00:00:00.000000Z"),
    ],
)
def test_later_calls_follow_each_kind_of_end(world: _World, event: Event) -> None:
    world.end("job-1")
    append(world.log, "job-2", submitted())
    assert world.latest() == ["job-1"]
    append(world.log, "job-3", submitted(), started())
    append(world.log, "job-2", event)
    assert world.latest() == ["job-2", "job-1"]
    assert world.latest() == ["job-2", "job-1"]


def test_a_job_is_shown_as_it_ended(world: _World) -> None:
    world.end("job-1", event=completed())
    (job,) = world.ends.latest(9)
    assert (job.view.status, job.view.usage.completion_tokens) == (JobStatus.COMPLETED, 3)
    append(world.log, "job-2", submitted(), started(), completed())
    newest, _ = world.ends.latest(9)
    assert newest.view == world.log.views.get(JobId("job-2"))


def test_a_job_that_is_retried_is_no_longer_ended_until_it_ends_again(world: _World) -> None:
    world.end("job-1", "job-2", "job-3")
    assert world.latest() == ["job-3", "job-2", "job-1"]
    append(world.log, "job-2", RETRIED)
    assert world.latest() == ["job-3", "job-1"]
    append(world.log, "job-2", completed())
    assert world.latest() == ["job-2", "job-3", "job-1"]


def test_a_job_that_ended_twice_since_the_last_call_is_shown_once(world: _World) -> None:
    world.end("job-1", "job-2")
    assert world.latest() == ["job-2", "job-1"]
    append(world.log, "job-1", RETRIED, FAILED, RETRIED, completed())
    assert world.latest() == ["job-1", "job-2"]


def test_a_job_that_is_joined_after_its_end_keeps_its_place(world: _World) -> None:
    assert world.latest() == []
    world.end("job-1", "job-2")
    assert world.latest() == ["job-2", "job-1"]
    append(world.log, "job-1", JobAttached(reason="retry"))
    assert world.latest() == ["job-2", "job-1"]


def test_a_job_that_only_an_archive_has_is_passed_over(world: _World) -> None:
    world.end("job-1")
    assert world.latest() == ["job-1"]
    world.end("job-2", "job-3")
    del world.log.views.rows[JobId("job-2")]
    assert world.latest() == ["job-3", "job-1"]


def test_no_more_jobs_are_returned_than_wanted(world: _World) -> None:
    world.end("job-1", "job-2", "job-3")
    assert world.latest(2) == ["job-3", "job-2"]
    assert world.latest(0) == []


def test_only_jobs_of_the_named_key_count_and_others_take_no_place(world: _World) -> None:
    world.end("job-1", "job-2", owner="mine")
    world.end("job-3", owner="theirs")
    world.end("job-4")
    assert world.latest(2, "mine") == ["job-2", "job-1"]
    assert world.latest(1, "mine") == ["job-2"]
    assert world.latest(9, "nobody") == []
    assert world.latest(9) == ["job-4", "job-3", "job-2", "job-1"]


def test_the_first_call_reads_the_jobs_accepted_last(world: _World) -> None:
    world.end(*names(range(KEPT_MAX + 1)))
    assert world.latest() == names(range(KEPT_MAX, 0, -1))


def test_so_many_ended_jobs_are_kept(world: _World) -> None:
    world.end(*names(range(KEPT_MAX - 1)))
    assert len(world.latest()) == KEPT_MAX - 1
    world.end(f"job-{KEPT_MAX}")
    assert len(world.latest()) == KEPT_MAX
    world.end(f"job-{KEPT_MAX + 1}", f"job-{KEPT_MAX + 2}")
    kept = world.latest()
    assert kept[:2] == names([KEPT_MAX + 2, KEPT_MAX + 1])
    assert (len(kept), kept[-1]) == (KEPT_MAX, "job-2")


@pytest.mark.parametrize("ends", [PAGE_EVENTS - 2, PAGE_EVENTS, PAGE_EVENTS + 2])
def test_more_ends_than_one_read_returns_are_followed(world: _World, ends: int) -> None:
    append(world.log, "job-1", submitted())
    append(world.log, "job-2", submitted())
    assert world.latest() == []
    further: list[Event] = [FAILED, RETRIED] * (ends // 2 - 1)
    append(world.log, "job-1", *further, FAILED)
    append(world.log, "job-2", FAILED)
    assert world.latest() == ["job-2", "job-1"]
    world.end("job-3")
    assert world.latest() == ["job-3", "job-2", "job-1"]


def test_each_job_is_diagnosed_once(world: _World) -> None:
    world.unknown = {"job-1"}
    world.end("job-1", "job-2", "job-3")
    found = world.ends.latest(2)
    assert [job.diagnosis for job in found] == [FOUND, FOUND]
    assert world.diagnosed == ["job-3", "job-2"]
    found = world.ends.latest(3)
    assert [(job.diagnosis, job.is_diagnosed) for job in found] == [
        (FOUND, True),
        (FOUND, True),
        (None, True),
    ]
    world.ends.latest(3)
    assert world.diagnosed == ["job-3", "job-2", "job-1"]


def test_so_many_jobs_are_diagnosed_in_one_call_the_latest_first(world: _World) -> None:
    world.end(*names(range(DIAGNOSED_MAX + 2)))
    found = world.ends.latest(DIAGNOSED_MAX + 2)
    assert [job.is_diagnosed for job in found] == [True] * DIAGNOSED_MAX + [False] * 2
    assert [job.diagnosis for job in found] == [FOUND] * DIAGNOSED_MAX + [None] * 2
    assert world.diagnosed == names(range(DIAGNOSED_MAX + 1, 1, -1))
    world.latest()
    assert world.diagnosed[DIAGNOSED_MAX:] == ["job-1", "job-0"]


def test_a_job_that_ends_again_is_diagnosed_again(world: _World) -> None:
    world.end("job-1")
    world.latest()
    append(world.log, "job-1", RETRIED, completed())
    world.latest()
    assert world.diagnosed == ["job-1", "job-1"]


def test_the_jobs_are_read_anew_after_too_many_events(world: _World) -> None:
    world.end("job-1")
    world.latest()
    world.log.further = BEHIND_MAX
    world.latest()
    assert world.diagnosed == ["job-1"]
    world.log.further += BEHIND_MAX + 1
    assert world.latest() == ["job-1"]
    assert world.diagnosed == ["job-1", "job-1"]


def test_jobs_that_are_gone_when_they_are_read_anew_are_forgotten(world: _World) -> None:
    world.end("job-1", "job-2")
    world.latest()
    del world.log.views.rows[JobId("job-1")]
    assert world.latest() == ["job-2", "job-1"]
    world.log.further = BEHIND_MAX + 1
    assert world.latest() == ["job-2"]


def test_events_that_end_no_job_count_as_read(world: _World) -> None:
    world.end("job-1")
    world.latest()
    append(world.log, "worker-1", *(worker_event() for _ in range(3)))
    world.latest()
    world.log.further = BEHIND_MAX
    world.latest()
    assert world.diagnosed == ["job-1"]
