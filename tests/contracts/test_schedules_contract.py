"""Schedules and what they submit, on the fake, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from domain.batch import schedules as module
from domain.batch.ports import BatchViews
from domain.batch.schedules import MISSED_MAX, Schedule, ScheduleId, ScheduleRecords, ScheduleRunner
from domain.errors import (
    LogUnavailable,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ScheduleExists,
    ScheduleNotFound,
)
from domain.events.schedule import ScheduleAdded, ScheduleFired, ScheduleMissed, ScheduleResumed
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.values import JobId, Owner, StreamName, digest_of
from ops.cron import CronsimTable
from ops.log.sql_event_log import open_log
from tests.support.builders.log_stores import STORES, new_log_of
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds

BODY = b'{"prompt":"hi"}'
MINUTE_S, DAY_S = 60, 86_400


@dataclass
class Jobs:
    """``ScheduledJobs`` that keeps what it submitted."""

    made: dict[str, JobId] = field(default_factory=dict)
    refusal: Exception | None = None
    asked: int = 0

    def submit(self, schedule: Schedule, due: str) -> JobId:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        key = f"{schedule.id}:{due}"
        return self.made.setdefault(key, JobId(f"job-{len(self.made)}"))

    def find(self, schedule: Schedule, due: str) -> JobId | None:
        return self.made.get(f"{schedule.id}:{due}")

    @property
    def dues(self) -> list[str]:
        """The instants that have a job."""
        return [key.partition(":")[2] for key in self.made]


@dataclass
class World:
    """A log and two api processes."""

    log: EventLog
    views: BatchViews
    clock: FakeClock
    ids: SequentialIds
    jobs: Jobs = field(default_factory=Jobs)

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
        yield World(fake, InMemoryBatchViews(fake), clock, ids)
        return
    with open_log(new_log_of(request, tmp_path), clock=clock) as log:
        yield World(log, log.batches, clock, ids)


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
    assert state.last == ScheduleFired(
        due="2026-01-01T00:03:00.000000Z", job="job-2", next_at=state.next_at
    )


def test_a_job_whose_process_died_before_its_event_is_the_same_job(world: World) -> None:
    schedule = world.add()
    world.clock.advance(MINUTE_S)
    made = world.jobs.submit(schedule, "2026-01-01T00:01:00.000000Z")
    world.clock.advance(2 * MINUTE_S)
    world.runner().fire_due()
    assert [type(one) for one in world.events(schedule)] == [
        ScheduleMissed,
        ScheduleFired,
        ScheduleFired,
    ]
    state = world.now(schedule)
    assert (state.fired, state.missed, len(world.jobs.made)) == (2, 1, 2)
    assert world.jobs.find(schedule, "2026-01-01T00:01:00.000000Z") == made


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
            due="2026-01-04T03:00:00.000000Z", job="job-0", next_at="2026-01-05T03:00:00.000000Z"
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
    assert runner.fire_due() == ()
    world.clock.advance(30)
    assert runner.fire_due() == ()
    assert world.now(schedule).fired == 1


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


def test_of_two_schedules_added_at_once_under_one_name_the_first_exists(world: World) -> None:
    log = Racing(world.log, world.add)
    records = ScheduleRecords(log=cast("EventLog", log), views=world.views, ids=world.ids)
    added = ScheduleAdded(
        name="one",
        cron="* * * * *",
        timezone="UTC",
        job=digest_of(BODY),
        runs_late=True,
        next_at="2026-01-01T00:01:00.000000Z",
    )
    with pytest.raises(ScheduleExists, match="one"):
        records.add(added, body=BODY, correlation_id="r", sharer=None)
    (present,) = world.runner().records.present()
    assert present.id == log.other.id
    world.clock.advance(MINUTE_S)
    assert world.runner().fire_due() == (present.id,)
    world.runner().records.remove(present.id)
    assert world.runner().records.present() == ()


class Racing:
    """A log before whose next append another process adds a schedule."""

    def __init__(self, log: EventLog, add: Callable[[], Schedule]) -> None:
        self._log = log
        self._adds = [add]
        self.other: Schedule

    def append(self, *given: Any, **more: Any) -> Any:
        if self._adds:
            self.other = self._adds.pop()()
        return self._log.append(*given, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


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
