"""Schedules and what they submit, on the fake, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from domain.batch import schedules as module
from domain.batch.ports import BatchViews
from domain.batch.schedules import MISSED_MAX, Schedule, ScheduleId, ScheduleRecords, ScheduleRunner
from domain.chat.request import ChatRequest, Message
from domain.errors import (
    LogUnavailable,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ScheduleExists,
    ScheduleNotFound,
)
from domain.events.job import JobSubmitted
from domain.events.schedule import ScheduleAdded, ScheduleFired, ScheduleMissed, ScheduleResumed
from domain.job.listing import JobViews
from domain.job.submit import JobSubmission, RecordedBy, idempotency_digest
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import EventFilter
from domain.values import JobId, Owner, SamplingWish, StreamName, digest_of
from ops.cron import CronsimTable
from ops.log.sql_event_log import open_log
from tests.support.builders.log_stores import STORES, new_log_of
from tests.support.builders.new_jobs import new_job
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.job_queue import FakeJobQueue
from tests.support.fakes.time import FakeClock, SequentialIds

BODY = b'{"prompt":"hi"}'
REQUEST = ChatRequest(
    model="m",
    messages=(Message(role="user", content="hi"),),
    max_tokens=8,
    sampling=SamplingWish(seed=1),
)
MINUTE_S, DAY_S = 60, 86_400


@dataclass
class Jobs:
    """``ScheduledJobs`` on the log; a job has its key as correlation.

    Attributes:
        stall: Called once, right before the next job is appended.
    """

    log: EventLog
    views: JobViews
    ids: SequentialIds
    refusal: Exception | None = None
    asked: int = 0
    stall: Callable[[], object] | None = None

    def submit(self, schedule: Schedule, due: str, recorded_by: RecordedBy) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        stall, self.stall = self.stall, None
        if stall is not None:
            stall()
        key = f"{schedule.id}:{due}"
        command = new_job(
            REQUEST,
            correlation_id=key,
            idempotency=idempotency_digest(key),
            recorded_by=recorded_by,
        )
        submission = JobSubmission(log=self.log, queue=FakeJobQueue(), ids=self.ids)
        submission.submit(command, job_id=self.ids.job_id())

    def find(self, schedule: Schedule, due: str) -> JobId | None:
        job = self.views.keyed(idempotency_digest(f"{schedule.id}:{due}"))
        return None if job is None else job.id

    @property
    def dues(self) -> list[str]:
        """The instants that have a job."""
        wanted = EventFilter(types=(JobSubmitted.__name__,))
        found = self.log.select(wanted)
        return [one.correlation_id.partition(":")[2] for one in found]


@dataclass
class World:
    """A log and two api processes."""

    log: EventLog
    views: BatchViews
    clock: FakeClock
    ids: SequentialIds
    jobs: Jobs

    def runner(self) -> ScheduleRunner:
        """Return the runner of another process."""
        records = ScheduleRecords(log=self.log, views=self.views, ids=self.ids)
        return ScheduleRunner(
            records=records, jobs=self.jobs, cron=CronsimTable(), clock=self.clock
        )

    def add(
        self, name: str = "one", cron: str = "* * * * *", *, runs_late: bool = True, owner: str = ""
    ) -> Schedule:
        """Add a schedule in UTC."""
        added = ScheduleAdded(
            name=name,
            cron=cron,
            timezone="UTC",
            job=digest_of(BODY),
            runs_late=runs_late,
            next_at=_text(CronsimTable().check(cron, "UTC", self.clock.now())),
            owner=Owner(owner) if owner else None,
        )
        records = ScheduleRecords(log=self.log, views=self.views, ids=self.ids)
        return records.add(added, body=BODY, correlation_id="r", sharer=added.owner)

    def now(self, schedule: Schedule) -> Schedule:
        """Return a schedule as another process reads it."""
        return self.runner().records.load(schedule.id)

    def events(self, schedule: Schedule) -> list[object]:
        """Return the events of a schedule after its first."""
        return [decode_recorded(one) for one in self.log.load(StreamName(schedule.id))[1:]]


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock, ids = FakeClock(), SequentialIds()
    if request.param == "fake":
        fake = InMemoryEventLog(clock)
        jobs = Jobs(fake, fake.views, ids)
        yield World(fake, InMemoryBatchViews(fake), clock, ids, jobs)
        return
    with open_log(new_log_of(request, tmp_path), clock=clock) as log:
        yield World(log, log.batches, clock, ids, Jobs(log, log.views, ids))


def test_each_instant_gets_one_job_also_of_two_processes(world: World) -> None:
    schedule = world.add()
    first, second = world.runner(), world.runner()
    for _ in range(3):
        world.clock.advance(MINUTE_S)
        assert first.fire_due() == (schedule.id,)
        second.fire_due()
        first.fire_due()
    assert world.jobs.dues == [f"2026-01-01T00:0{n}:00.000000Z" for n in (1, 2, 3)]
    state = world.now(schedule)
    assert (state.fired, state.missed) == (3, 0)
    assert state.next_at == "2026-01-01T00:04:00.000000Z"
    due = "2026-01-01T00:03:00.000000Z"
    job = world.jobs.find(schedule, due)
    assert job is not None
    assert state.last == ScheduleFired(due=due, job=job, next_at=state.next_at)


@pytest.mark.parametrize("runs_late", [True, False])
def test_a_submission_that_stalls_until_its_instant_is_missed_gives_no_job(
    world: World, *, runs_late: bool
) -> None:
    schedule = world.add(runs_late=runs_late)
    first, second = world.runner(), world.runner()

    def miss() -> None:
        world.clock.advance(10 * MINUTE_S)
        second.fire_due()

    world.jobs.stall = miss
    world.clock.advance(MINUTE_S)
    first.fire_due()
    assert [type(one) for one in world.events(schedule)] == [ScheduleMissed, ScheduleFired]
    assert world.jobs.dues == ["2026-01-01T00:11:00.000000Z"]
    first.fire_due()
    state = world.now(schedule)
    assert (state.fired, state.missed) == (1, 10)


def test_a_schedule_that_is_paused_under_a_submission_gives_no_job(world: World) -> None:
    schedule = world.add()
    first, second = world.runner(), world.runner()
    world.jobs.stall = lambda: second.records.pause(schedule.id)
    world.clock.advance(MINUTE_S)
    first.fire_due()
    assert (world.now(schedule).fired, world.jobs.dues) == (0, [])


def test_an_instant_that_is_missed_after_its_job_stays_fired(world: World) -> None:
    schedule = world.add()
    first, second = world.runner(), world.runner()
    world.clock.advance(MINUTE_S)
    world.jobs.refusal = ModelNotFound("m", known=())
    missing = second.records.record

    def late(*given: Any) -> None:
        world.jobs.refusal = None
        first.fire_due()
        missing(*given)

    with mock.patch.object(second.records, "record", late):
        second.fire_due()
    state = world.now(schedule)
    assert (state.fired, state.missed, world.jobs.dues) == (1, 0, ["2026-01-01T00:01:00.000000Z"])


def test_what_a_sleep_missed_is_stated_and_made_up_for_once(world: World) -> None:
    schedule = world.add(cron="0 3 * * *")
    world.clock.advance(4 * DAY_S)
    world.runner().fire_due()
    assert world.events(schedule) == [
        ScheduleMissed(
            first="2026-01-01T03:00:00.000000Z",
            last="2026-01-03T03:00:00.000000Z",
            count=3,
            reason="late",
            next_at="2026-01-05T03:00:00.000000Z",
        ),
        ScheduleFired(
            due="2026-01-04T03:00:00.000000Z",
            job=world.jobs.find(schedule, "2026-01-04T03:00:00.000000Z") or "",
            next_at="2026-01-05T03:00:00.000000Z",
        ),
    ]


@pytest.mark.parametrize(("late_s", "jobs"), [(60, 1), (61, 0)])
def test_a_schedule_that_skips_runs_no_late_job(world: World, late_s: int, jobs: int) -> None:
    schedule = world.add(cron="0 3 * * *", runs_late=False)
    world.clock.advance(3 * 3600 + late_s)
    world.runner().fire_due()
    state = world.now(schedule)
    assert (state.fired, state.missed) == (jobs, 1 - jobs)
    assert state.next_at == "2026-01-02T03:00:00.000000Z"


def test_very_many_missed_instants_are_not_all_counted(world: World) -> None:
    schedule = world.add()
    world.clock.advance(2 * MISSED_MAX * MINUTE_S)
    world.runner().fire_due()
    state = world.now(schedule)
    assert (state.fired, state.missed) == (1, MISSED_MAX - 1)
    assert state.last is not None
    assert state.last.due == _text(world.clock.now())


def test_a_clock_that_was_set_back_begins_the_instants_anew(world: World) -> None:
    schedule, runner = world.add(cron="0 3 * * *"), world.runner()
    world.clock.advance(400 * DAY_S)
    runner.fire_due()
    world.clock.advance(-400 * DAY_S)
    runner.fire_due()
    assert world.events(schedule)[-1] == ScheduleResumed(
        next_at="2026-01-01T03:00:00.000000Z", reason="clock_set_back"
    )
    world.clock.advance(3 * 3600)
    runner.fire_due()
    assert world.jobs.dues[-1] == "2026-01-01T03:00:00.000000Z"


def test_a_clock_that_is_a_little_early_repeats_nothing(world: World) -> None:
    schedule, runner = world.add(), world.runner()
    world.clock.advance(MINUTE_S)
    runner.fire_due()
    world.clock.advance(-30)
    assert runner.fire_due() == world.runner().fire_due() == ()
    world.clock.advance(30)
    assert runner.fire_due() == ()
    assert (world.now(schedule).fired, len(world.events(schedule))) == (1, 1)


def test_a_paused_schedule_misses_nothing(world: World) -> None:
    schedule, runner = world.add(), world.runner()
    runner.records.pause(schedule.id)
    assert runner.records.pause(schedule.id).is_paused
    world.clock.advance(10 * MINUTE_S)
    assert runner.fire_due() == ()
    runner.records.resume(schedule.id, next_at="2026-01-01T00:11:00.000000Z")
    runner.records.resume(schedule.id, next_at="2026-01-01T00:12:00.000000Z")
    world.clock.advance(MINUTE_S)
    runner.fire_due()
    state = world.now(schedule)
    assert (state.fired, state.missed, len(world.events(schedule))) == (1, 0, 3)


@pytest.mark.parametrize("dies", [False, True])
def test_of_two_schedules_added_at_once_under_one_name_one_exists(
    world: World, *, dies: bool
) -> None:
    log = Racing(world.log, world.add, dies=dies)
    records = ScheduleRecords(log=cast("EventLog", log), views=world.views, ids=world.ids)
    added = ScheduleAdded(
        name="one",
        cron="* * * * *",
        timezone="UTC",
        job=digest_of(BODY),
        runs_late=True,
        next_at="2026-01-01T00:01:00.000000Z",
    )
    with pytest.raises(LogUnavailable if dies else ScheduleExists):
        records.add(added, body=BODY, correlation_id="r", sharer=None)
    (present,) = world.runner().records.present()
    assert present.id == log.other.id
    world.clock.advance(MINUTE_S)
    assert world.runner().fire_due() == (present.id,)
    world.runner().records.remove(present.id)
    assert world.runner().records.present() == ()


def test_of_many_schedules_added_at_once_under_one_name_one_exists(world: World) -> None:
    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda _: _add_or_refusal(world), range(8)))
        assert outcomes.count("schedule_exists") == 7
        (present,) = world.runner().records.present()
        assert present.id in outcomes
        world.runner().records.remove(present.id)


def _add_or_refusal(world: World) -> str:
    try:
        return world.add().id
    except ScheduleExists as error:
        return error.code


def test_equal_names_of_two_owners_are_two_schedules(world: World) -> None:
    ids = {world.add(owner=owner).id for owner in ("", "ann", "bob")}
    assert {one.id for one in world.runner().records.present()} == ids
    assert len(ids) == 3


class Racing:
    """A log before whose next append another process adds a schedule.

    Args:
        dies: Whether the log is away once that append is made or refused.
    """

    def __init__(self, log: EventLog, add: Callable[[], Schedule], *, dies: bool) -> None:
        self._log = log
        self._adds = [add]
        self._dies = dies
        self.other: Schedule

    def append(self, *given: Any, **more: Any) -> Any:
        if self._adds:
            self.other = self._adds.pop()()
            return self._log.append(*given, **more)
        return self._alive.append(*given, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._alive if "_adds" in vars(self) else self._log, name)

    @property
    def _alive(self) -> EventLog:
        if self._dies and not self._adds:
            raise LogUnavailable("the process is gone")
        return self._log


def test_a_removed_schedule_is_gone_and_its_name_is_free(world: World) -> None:
    schedule, runner = world.add(), world.runner()
    with pytest.raises(ScheduleExists):
        world.add()
    assert [one.id for one in runner.records.present()] == [schedule.id]
    runner.records.remove(schedule.id)
    for gone in (schedule.id, ScheduleId("schedule-0")):
        with pytest.raises(ScheduleNotFound):
            runner.records.pause(gone)
    other = world.add()
    assert [one.id for one in runner.records.present()] == [other.id]
    world.clock.advance(MINUTE_S)
    assert runner.fire_due() == (other.id,)


@pytest.mark.parametrize(
    "refusal", [Overloaded("full", retry_after_s=1), RateLimited("full", retry_after_s=1)]
)
def test_a_refusal_that_passes_is_tried_again_until_the_next_instant(
    world: World, refusal: Exception
) -> None:
    schedule, runner = world.add(), world.runner()
    world.clock.advance(MINUTE_S)
    world.jobs.refusal = refusal
    runner.fire_due()
    assert world.events(schedule) == []
    world.jobs.refusal = None
    runner.fire_due()
    assert world.jobs.dues == ["2026-01-01T00:01:00.000000Z"]


def test_a_job_that_is_refused_for_good_is_missed(world: World) -> None:
    schedule, runner = world.add(), world.runner()
    world.clock.advance(MINUTE_S)
    world.jobs.refusal = ModelNotFound("m", known=())
    runner.fire_due()
    runner.fire_due()
    (missed,) = world.events(schedule)
    assert isinstance(missed, ScheduleMissed)
    assert (missed.reason, missed.count, world.jobs.asked) == ("model_not_found", 1, 1)


def test_a_log_that_cannot_be_written_is_reported(world: World) -> None:
    world.add()
    world.clock.advance(MINUTE_S)
    world.jobs.refusal = LogUnavailable("the disk is full")
    with pytest.raises(LogUnavailable):
        world.runner().fire_due()


def test_too_many_schedules_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCHEDULES_MAX", 2)
    world.add("one")
    world.add("two")
    with pytest.raises(Overloaded, match="2 schedules"):
        world.add("three")
    with pytest.raises((Overloaded, RateLimited)):
        world.add("three", owner="key")
