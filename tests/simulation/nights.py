"""Schedules of the simulated service, and what must be true of their instants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from domain.batch.schedules import (
    SCHEDULE_PREFIX,
    Schedule,
    ScheduleId,
    ScheduleRecords,
    ScheduleRunner,
)
from domain.errors import ScheduleExists
from domain.events.job import JobSubmitted
from domain.events.schedule import ScheduleAdded, ScheduleFired, ScheduleMissed
from domain.job.submit import RecordedBy, idempotency_digest
from domain.log.codec import decode_recorded
from domain.values import JobId, digest_of, rfc3339
from tests.simulation.steps import Process
from tests.support.fakes.batches import InMemoryBatchViews

if TYPE_CHECKING:
    from tests.simulation.world import World

#: What each job of a schedule asks.
_PROMPT = "x" * 8
_BODY = b"{}"
MINUTE = timedelta(minutes=1)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Evenly:
    """``CronTable`` of an expression for instants at equal distances."""

    every: timedelta

    def after(self, cron: str, timezone: str, at: datetime) -> Iterator[datetime]:
        first = self.latest(cron, timezone, at)
        return (first + number * self.every for number in count(1))

    def latest(self, cron: str, timezone: str, at: datetime) -> datetime:
        del cron, timezone
        return at - (at - _BEGIN) % self.every


@dataclass(frozen=True, slots=True)
class _Jobs:
    """``ScheduledJobs`` of an api process of the world."""

    world: World
    api: Process

    def submit(self, schedule: Schedule, due: str, recorded_by: RecordedBy) -> None:
        key = key_of(schedule, due)
        self.world.submit_scheduled(self.api, _PROMPT, key=key, recorded_by=recorded_by)

    def find(self, schedule: Schedule, due: str) -> JobId | None:
        views = self.api.stepped(self.world.log.views, "views")
        job = views.keyed(idempotency_digest(key_of(schedule, due)))
        return None if job is None else JobId(job.id)


def key_of(schedule: Schedule, due: str) -> str:
    """Return the key of the job of an instant."""
    return f"{schedule.id}:{due}"


class Nights:
    """The schedules of a world.

    Args:
        every: Time between two instants.
    """

    def __init__(self, world: World, every: timedelta) -> None:
        self._world = world
        self._cron = Evenly(every)
        self._views = InMemoryBatchViews(world.log)
        self._records = ScheduleRecords(log=world.log, views=self._views, ids=world.ids)
        self._runners: dict[Process, ScheduleRunner] = {}
        self._position = 0
        self._fired: dict[str, set[str]] = {}
        self._missed: set[str] = set()
        self._added: set[ScheduleId] = set()
        self._keys: set[str] = set()

    def add(self, api: Process) -> None:
        """Begin to add a schedule."""
        first = next(self._cron.after("", "", self._world.clock.now()))
        added = ScheduleAdded(
            name=f"night-{len(self._fired) % 2}",
            cron="* * * * *",
            timezone="UTC",
            job=digest_of(_BODY),
            runs_late=len(self._fired) % 2 == 0,
            next_at=rfc3339(first),
        )
        records = self._runner(api).records

        def body() -> None:
            try:
                schedule = records.add(added, body=_BODY, correlation_id="r", sharer=None)
            except ScheduleExists:
                return
            self._added.add(schedule.id)

        self._begin(api, "plan", body)

    def fire(self, api: Process) -> None:
        """Begin to submit the jobs that are due."""
        self._begin(api, "fire", self._runner(api).fire_due)

    def wind_down(self, api: Process) -> None:
        """Submit what is due, and pause the schedules once nothing is: the work gets an end."""
        records = self._records
        now = rfc3339(self._world.clock.now())
        for schedule in records.present():
            if schedule.due_at is not None and schedule.due_at <= now:
                self.fire(api)
            elif not schedule.is_paused:
                records.pause(schedule.id)

    @property
    def is_done(self) -> bool:
        """Whether every schedule is paused."""
        return all(schedule.is_paused for schedule in self._records.present())

    def check(self) -> None:
        """Look at the new events."""
        for recorded in self._world.log.read_all(after=self._position, limit=1000):
            self._position = recorded.position
            event = decode_recorded(recorded)
            if isinstance(event, JobSubmitted) and recorded.correlation_id.startswith(
                SCHEDULE_PREFIX
            ):
                self._check_job(recorded.correlation_id)
            elif isinstance(event, ScheduleAdded):
                self._fired[recorded.stream] = set()
                self._check_names()
            elif isinstance(event, ScheduleFired):
                fired = self._fired[recorded.stream]
                where = f"{event} of {recorded.stream}"
                assert event.due <= recorded.recorded_at, f"before its instant: {where}"
                assert event.due not in fired, f"twice: {where}"
                fired.add(event.due)
                assert JobId(event.job) in self._world.truth.jobs, f"no job: {where}"
            elif isinstance(event, ScheduleMissed):
                self._check_missed(recorded.stream, event)

    def _check_job(self, instant: str) -> None:
        assert instant not in self._keys, f"two jobs of one instant: {instant}"
        assert instant not in self._missed, f"a job of a missed instant: {instant}"
        self._keys.add(instant)

    def _check_missed(self, stream: str, event: ScheduleMissed) -> None:
        before = datetime.fromisoformat(event.first) - self._cron.every
        instants = islice(self._cron.after("", "", before), event.count)
        dues = [rfc3339(one) for one in instants]
        assert dues[-1] == event.last, f"not each is missed: {event}"
        missed = {f"{stream}:{due}" for due in dues}
        assert not missed & self._keys, f"missed, and has a job: {missed & self._keys}"
        self._missed |= missed

    def _check_names(self) -> None:
        names = Counter(one.facts.name for one in self._records.present())
        assert max(names.values(), default=0) <= 1, f"two schedules of one name: {names}"

    def check_end(self) -> None:
        """Every instant up to the next one has its job, or is recorded as missed."""
        self.check()
        assert self._added <= self._fired.keys(), "a schedule that was added does not exist"
        records = self._records
        for name in self._fired:
            schedule = records.load(ScheduleId(name))
            first, next_at = schedule.facts.next_at, schedule.next_at
            assert next_at is not None
            passed = (
                datetime.fromisoformat(next_at) - datetime.fromisoformat(first)
            ) / self._cron.every
            known = schedule.fired + schedule.missed
            assert known == passed, f"{known} of {passed} instants: {schedule}"
        fired = {f"{name}:{due}" for name, dues in self._fired.items() for due in dues}
        assert self._keys == fired, f"jobs without an event: {self._keys ^ fired}"

    @property
    def missed(self) -> int:
        """Recorded misses."""
        return len(self._world.log.read_all(limit=10**6, types=(ScheduleMissed.__name__,)))

    def _begin(self, api: Process, name: str, body: Any) -> None:
        if not any(task.name == f"{api.name}/{name}" for task in api.tasks):
            api.begin(name, body)

    def _runner(self, api: Process) -> ScheduleRunner:
        world = self._world
        if api not in self._runners:
            records = ScheduleRecords(
                log=api.stepped(world.log, "log"), views=self._views, ids=world.ids
            )
            self._runners[api] = ScheduleRunner(
                records=records, jobs=_Jobs(world, api), cron=self._cron, clock=world.clock
            )
        return self._runners[api]
