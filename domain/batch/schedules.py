"""Adds, lists, pauses and removes schedules, and submits the jobs that are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile
from typing import Final, NewType, Protocol

from domain.batch.ports import BatchViews
from domain.errors import (
    LogUnavailable,
    ScheduleExists,
    ScheduleNotFound,
    SemanticError,
)
from domain.events.event import Event
from domain.events.schedule import (
    ScheduleAdded,
    ScheduleEvent,
    ScheduleFired,
    ScheduleMissed,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
)
from domain.log.codec import decode_recorded
from domain.log.folded_stream import FoldedStream
from domain.log.ports import EventLog
from domain.log.record import RecordedEvent
from domain.ports import Clock, IdSource
from domain.shares import require_one_more
from domain.values import JobId, Owner, StreamName, rfc3339

#: ``schedule-`` and 32 hex digits.
ScheduleId = NewType("ScheduleId", str)

SCHEDULE_PREFIX: Final = "schedule-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule; instants are RFC 3339.

    Attributes:
        version: Number of events folded.
        added: The facts; ``None`` only before the first event.
        next_at: The instant of the next job; ``None`` where there is none.
        fired: Number of jobs.
        last: The latest of them.
        missed: Number of instants without a job.
        last_missed: The latest of them.
    """

    id: ScheduleId
    version: int = 0
    added: ScheduleAdded | None = None
    created_at: str = ""
    is_paused: bool = False
    is_removed: bool = False
    next_at: str | None = None
    fired: int = 0
    last: ScheduleFired | None = None
    missed: int = 0
    last_missed: ScheduleMissed | None = None

    @property
    def facts(self) -> ScheduleAdded:
        """The facts of a schedule that exists."""
        assert self.added is not None
        return self.added

    @property
    def due_at(self) -> str | None:
        """The instant at which it has work; ``None`` while it is paused."""
        return None if self.is_paused or self.is_removed else self.next_at


def evolve(schedule: Schedule, recorded: RecordedEvent) -> Schedule:
    """Return the schedule after the next event of its stream."""
    event = decode_recorded(recorded)
    assert isinstance(event, ScheduleEvent)
    after = _after(schedule, event, recorded.recorded_at)
    return replace(after, version=recorded.version)


def _after(schedule: Schedule, event: ScheduleEvent, at: str) -> Schedule:
    match event:
        case ScheduleAdded():
            return replace(schedule, added=event, created_at=at, next_at=event.next_at)
        case SchedulePaused():
            return replace(schedule, is_paused=True)
        case ScheduleResumed():
            return replace(schedule, is_paused=False, next_at=event.next_at)
        case ScheduleFired():
            fired = schedule.fired + 1
            return replace(schedule, fired=fired, last=event, next_at=event.next_at)
        case ScheduleMissed():
            missed = schedule.missed + event.count
            return replace(schedule, missed=missed, last_missed=event, next_at=event.next_at)
        case ScheduleRemoved():
            return replace(schedule, is_removed=True, next_at=None)


#: Schedules that may exist at once, paused ones included.
SCHEDULES_MAX: Final = 500
#: Missed instants of one event that are counted; more count as so many.
MISSED_MAX: Final = 1000
#: Seconds after which an instant counts as missed where late jobs are not wanted.
LATE_S: Final = 60.0
#: A clock that is set back by more than this begins the instants of schedules anew, in seconds.
SET_BACK_S: Final = 3600.0
#: Streams that are looked up at once.
_STREAMS_MAX: Final = 1000


class CronTable(Protocol):
    """The instants of cron expressions. Both arguments were checked before."""

    def after(self, cron: str, timezone: str, at: datetime) -> Iterator[datetime]:
        """Yield the instants after ``at``, in order."""

    def latest(self, cron: str, timezone: str, at: datetime) -> datetime:
        """Return the last instant that is ``at`` or earlier."""


class ScheduleRecords:
    """The schedules of a log; one per process, for any thread.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written.

    Args:
        views: Find the streams.
    """

    def __init__(self, *, log: EventLog, views: BatchViews, ids: IdSource) -> None:
        self._log = log
        self._views = views
        self._ids = ids
        self._streams: dict[ScheduleId, FoldedStream[Schedule]] = {}
        self._last: StreamName | None = None
        self._read_to = -1
        self._present: tuple[Schedule, ...] = ()

    def present(self) -> tuple[Schedule, ...]:
        """Return the schedules that are not removed, oldest first; reads only what is new.

        Of two that were added at once under one name, the first one of the log exists.
        """
        head = self._log.head().position
        if head == self._read_to:
            return self._present
        while found := self._views.streams(
            ScheduleAdded.__name__, limit=_STREAMS_MAX, after=self._last, oldest_first=True
        ):
            self._streams |= {ScheduleId(name): self._stream(ScheduleId(name)) for name in found}
            self._last = found[-1]
        read = {name: stream.read() for name, stream in tuple(self._streams.items())}
        for name in [name for name, schedule in read.items() if schedule.is_removed]:
            self._streams.pop(name, None)
        first: dict[tuple[Owner | None, str], Schedule] = {}
        for schedule in read.values():
            if not schedule.is_removed:
                first.setdefault((schedule.facts.owner, schedule.facts.name), schedule)
        self._present = tuple(first.values())
        self._read_to = head
        return self._present

    def load(self, schedule_id: ScheduleId) -> Schedule:
        """Return a schedule.

        Raises:
            ScheduleNotFound: There is none, or it was removed.
        """
        found = self._stream(schedule_id).read()
        if found.added is None or found.is_removed:
            raise ScheduleNotFound(schedule_id)
        return found

    def add(
        self, added: ScheduleAdded, *, body: bytes, correlation_id: str, sharer: Owner | None
    ) -> Schedule:
        """Record a schedule.

        Args:
            body: The text that ``added.job`` is the digest of.
            sharer: The API key whose share counts; ``None`` where no other key is in need of one.

        Raises:
            ScheduleExists: Its owner has another one of that name.
            Overloaded: Naming the limit.
            RateLimited: Naming the share of the key.
        """
        present = self.present()
        mine = [one for one in present if one.facts.owner == added.owner]
        if any(one.facts.name == added.name for one in mine):
            raise ScheduleExists(added.name)
        require_one_more(
            SCHEDULES_MAX,
            held=len(present),
            mine=None if sharer is None else len(mine),
            what="schedules",
            hint="remove one",
        )
        schedule_id = ScheduleId(SCHEDULE_PREFIX + self._ids.job_id().removeprefix("job-"))
        payloads = {added.job: body}
        stream = self._stream(schedule_id)
        stream.commit(lambda _: (added,), correlation_id=correlation_id, payloads=payloads)
        if all(one.id != schedule_id for one in self.present()):
            self.remove(schedule_id)
            raise ScheduleExists(added.name)
        return self.load(schedule_id)

    def pause(self, schedule_id: ScheduleId) -> Schedule:
        """Stop the jobs of a schedule; one that is paused stays as it is."""
        return self.change(schedule_id, lambda now: () if now.is_paused else (SchedulePaused(),))

    def resume(self, schedule_id: ScheduleId, *, next_at: str) -> Schedule:
        """Let a paused schedule go on at an instant; another one stays as it is."""
        resumed = ScheduleResumed(next_at=next_at, reason="api")
        return self.change(schedule_id, lambda now: (resumed,) if now.is_paused else ())

    def remove(self, schedule_id: ScheduleId) -> None:
        """Remove a schedule; its jobs stay."""
        self.load(schedule_id)
        self._stream(schedule_id).commit(lambda now: () if now.is_removed else (ScheduleRemoved(),))

    def change(
        self, schedule_id: ScheduleId, decide: Callable[[Schedule], Sequence[Event]]
    ) -> Schedule:
        """Append what follows from the present state of a schedule, and return it.

        Raises:
            ScheduleNotFound: There is none, or it was removed.
        """
        self.load(schedule_id)
        self._stream(schedule_id).commit(lambda now: () if now.is_removed else decide(now))
        return self.load(schedule_id)

    def _stream(self, schedule_id: ScheduleId) -> FoldedStream[Schedule]:
        return self._streams.get(schedule_id) or FoldedStream(
            StreamName(schedule_id),
            log=self._log,
            ids=self._ids,
            initial=Schedule(id=schedule_id),
            evolve=evolve,
        )


class ScheduledJobs(Protocol):
    """Submits the jobs of schedules; there is one for each schedule and instant."""

    def submit(self, schedule: Schedule, due: str) -> JobId:
        """Submit the job of an instant, or return the one that was submitted before.

        Raises:
            SemanticError: The job was refused.
        """

    def find(self, schedule: Schedule, due: str) -> JobId | None:
        """Return the job of an instant, if there is one."""


@dataclass(slots=True)
class ScheduleRunner:
    """Submits the jobs that are due; one per process.

    Several processes may look at the same time, and one may die between the job and its event: the
    job of an instant is found by its key, and the stream takes one event for each instant.
    """

    records: ScheduleRecords
    jobs: ScheduledJobs
    cron: CronTable
    clock: Clock
    _latest: datetime | None = field(default=None, init=False)

    def fire_due(self) -> tuple[ScheduleId, ...]:
        """Submit a job for each schedule whose instant has come.

        Of several instants that passed, as in a sleep of the machine, the latest gets a job if the
        schedule wants late ones, or if it is less than ``LATE_S`` ago; the others are recorded as
        missed. After a clock was set back, instants count from the present time.

        Returns:
            The schedules that were due.

        Raises:
            LogUnavailable: Nothing was recorded for one of them; call again.
        """
        now = self.clock.now()
        was_set_back = self._latest is None or now < self._latest - timedelta(seconds=SET_BACK_S)
        self._latest = now if was_set_back else max(now, self._latest or now)
        present = self.records.present()
        if was_set_back:
            for schedule in present:
                self._begin_anew(schedule, now)
        due = [one for one in present if one.due_at is not None and one.due_at <= rfc3339(now)]
        for schedule in due:
            self._fire(schedule, now)
        return tuple(one.id for one in due)

    def first_after(self, cron: str, timezone: str, at: datetime) -> str | None:
        """Return the first instant after ``at``, if there is one."""
        found = next(self.cron.after(cron, timezone, at), None)
        return None if found is None else rfc3339(found)

    def _begin_anew(self, schedule: Schedule, now: datetime) -> None:
        """Resume a schedule whose next instant is later than it can be at this time."""
        if schedule.due_at is None:
            return
        next_at = self.first_after(schedule.facts.cron, schedule.facts.timezone, now)
        if next_at is None or schedule.due_at <= next_at:
            return
        resumed = ScheduleResumed(next_at=next_at, reason="clock_set_back")
        before = schedule.due_at
        self.records.change(schedule.id, lambda state: (resumed,) if state.due_at == before else ())

    def _fire(self, schedule: Schedule, now: datetime) -> None:
        cron, timezone, due_at = schedule.facts.cron, schedule.facts.timezone, schedule.due_at
        assert due_at is not None
        first = datetime.fromisoformat(due_at)
        later = self.cron.after(cron, timezone, first)
        passed = takewhile(lambda one: one <= now, chain([first], later))
        instants = list(islice(passed, MISSED_MAX))
        if len(instants) == MISSED_MAX:
            instants[-1] = self.cron.latest(cron, timezone, now)
        next_at = self.first_after(cron, timezone, max(now, instants[-1]))
        is_late = (now - instants[-1]).total_seconds() > LATE_S
        try:
            events = self._events(schedule, instants, next_at, is_late=is_late)
        except LogUnavailable:
            raise
        except SemanticError:
            return  # tried again, until the next instant makes this one missed
        self.records.change(schedule.id, lambda state: events if state.due_at == due_at else ())

    def _events(
        self,
        schedule: Schedule,
        instants: Sequence[datetime],
        next_at: str | None,
        *,
        is_late: bool,
    ) -> list[Event]:
        events: list[Event] = []
        missed: list[str] = []
        reason = "late"
        for number, instant in enumerate(instants, start=1):
            due = rfc3339(instant)
            wanted = number == len(instants) and (schedule.facts.runs_late or not is_late)
            try:
                # An api may have died after it had submitted the job of an earlier instant.
                job = (self.jobs.submit if wanted else self.jobs.find)(schedule, due)
            except SemanticError as error:
                if error.retryable:
                    raise
                job, reason = None, error.code
            if job is None:
                missed.append(due)
            else:
                events.append(ScheduleFired(due=due, job=job, next_at=next_at))
        if missed:
            count, first, last = len(missed), missed[0], missed[-1]
            events.insert(
                0,
                ScheduleMissed(first=first, last=last, count=count, reason=reason, next_at=next_at),
            )
        return events
