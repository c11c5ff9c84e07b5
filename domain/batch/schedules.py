"""Adds, lists, pauses and removes schedules, and submits the jobs that are due."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, count, islice, takewhile
from typing import Final, NewType, Protocol

from domain.batch.ports import BatchViews
from domain.chat.request import canonical_json
from domain.errors import (
    ConcurrencyConflict,
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
from domain.job.submit import RecordedBy
from domain.log.codec import decode_recorded
from domain.log.folded_stream import FoldedStream, again_after_conflicts
from domain.log.ports import EventLog
from domain.log.record import Append, Draft, RecordedEvent
from domain.ports import Clock, IdSource
from domain.shares import require_one_more
from domain.values import JobId, Owner, StreamName, digest_of, rfc3339

#: ``schedule-`` and 32 hex digits.
ScheduleId = NewType("ScheduleId", str)

SCHEDULE_PREFIX: Final = "schedule-"
_ID_DIGITS: Final = 32


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
        changed_at: When its last event was recorded.
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
    changed_at: str = ""

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
    return replace(after, version=recorded.version, changed_at=recorded.recorded_at)


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
        self._removed: set[ScheduleId] = set()
        self._last: StreamName | None = None
        self._read_to = -1
        self._present: tuple[Schedule, ...] = ()

    def present(self) -> tuple[Schedule, ...]:
        """Return the schedules that are not removed, oldest first; reads only what is new."""
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
            self._removed.add(name)
            self._streams.pop(name, None)
        self._present = tuple(one for one in read.values() if not one.is_removed)
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

        Of several that are added at once under one name, the log takes one: its id follows from its
        owner, its name and the number of earlier ones, and a stream begins once.

        Args:
            body: The text that ``added.job`` is the digest of.
            sharer: The API key whose share counts; ``None`` where no other key is in need of one.

        Raises:
            ScheduleExists: Its owner has another one of that name.
            Overloaded: Naming the limit.
            RateLimited: Naming the share of the key.
        """
        draft = Draft(event_id=self._ids.event_id(), event=added, correlation_id=correlation_id)

        def append() -> ScheduleId:
            self._require_place(added, sharer)
            fresh = _fresh_id(added, self._removed)
            self._log.append(
                StreamName(fresh), [draft], expected_version=0, payloads={added.job: body}
            )
            return fresh

        return self.load(again_after_conflicts(append))

    def _require_place(self, added: ScheduleAdded, sharer: Owner | None) -> None:
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

    def outcome(self, schedule: Schedule, events: Sequence[Event]) -> Append:
        """Return the append of events that were decided on a state of a schedule."""
        return Append(
            stream=StreamName(schedule.id),
            drafts=tuple(
                Draft(event_id=self._ids.event_id(), event=event, correlation_id=schedule.id)
                for event in events
            ),
            expected_version=schedule.version,
        )

    def record(self, schedule: Schedule, events: Sequence[Event]) -> None:
        """Append events that were decided on a state of a schedule.

        Raises:
            ConcurrencyConflict: The schedule has changed since; nothing was appended.
        """
        made = self.outcome(schedule, events)
        self._log.append(made.stream, made.drafts, expected_version=made.expected_version)

    def _stream(self, schedule_id: ScheduleId) -> FoldedStream[Schedule]:
        return self._streams.get(schedule_id) or FoldedStream(
            StreamName(schedule_id),
            log=self._log,
            ids=self._ids,
            initial=Schedule(id=schedule_id),
            evolve=evolve,
        )


def _fresh_id(added: ScheduleAdded, removed: Container[ScheduleId]) -> ScheduleId:
    """Return the id of a schedule; each removal makes a name free for the next id."""
    for number in count():
        facts = canonical_json([added.owner, added.name, number])
        fresh = ScheduleId(SCHEDULE_PREFIX + digest_of(facts).removeprefix("sha256:")[:_ID_DIGITS])
        if fresh not in removed:
            return fresh
    raise AssertionError


class ScheduledJobs(Protocol):
    """Submits the jobs of schedules; there is one for each schedule and instant."""

    def submit(self, schedule: Schedule, due: str, recorded_by: RecordedBy) -> None:
        """Submit the job of an instant, with what records it; nothing where it has a job.

        Raises:
            ConcurrencyConflict: The schedule has changed; no job was submitted.
            SemanticError: The job was refused.
        """

    def find(self, schedule: Schedule, due: str) -> JobId | None:
        """Return the job of an instant, if there is one."""


@dataclass(slots=True)
class ScheduleRunner:
    """Submits the jobs that are due; one per process.

    Several processes may look at the same time, and each may stall: an instant has one outcome. A
    job and its ``ScheduleFired`` are one append, which the log refuses where the schedule has
    changed since it was looked at.
    """

    records: ScheduleRecords
    jobs: ScheduledJobs
    cron: CronTable
    clock: Clock

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
        present = self.records.present()
        now = (
            self.clock.now()
        )  # read last: a look that stalled must not seem to be a clock set back
        for schedule in present:
            with suppress(ConcurrencyConflict):  # looked at again
                self._begin_anew(schedule, now)
        due = [one for one in present if one.due_at is not None and one.due_at <= rfc3339(now)]
        for schedule in due:
            with suppress(ConcurrencyConflict):  # looked at again
                self._fire(schedule, now)
        return tuple(one.id for one in due)

    def first_after(self, cron: str, timezone: str, at: datetime) -> str | None:
        """Return the first instant after ``at``, if there is one."""
        found = next(self.cron.after(cron, timezone, at), None)
        return None if found is None else rfc3339(found)

    def _begin_anew(self, schedule: Schedule, now: datetime) -> None:
        """Resume a schedule that changed in the future and whose next instant is too late."""
        is_future = schedule.changed_at > rfc3339(now + timedelta(seconds=SET_BACK_S))
        if schedule.due_at is None or not is_future:
            return
        next_at = self.first_after(schedule.facts.cron, schedule.facts.timezone, now)
        if next_at is None or schedule.due_at <= next_at:
            return
        resumed = ScheduleResumed(next_at=next_at, reason="clock_set_back")
        self.records.record(schedule, [resumed])

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
        dues = tuple(map(rfc3339, instants))
        # After the clock was set back, an instant may have had its job.
        found = {due: self.jobs.find(schedule, due) for due in dues}
        earlier = {due: job for due, job in found.items() if job is not None}
        reason, latest = "late", dues[-1]
        if latest not in earlier and (schedule.facts.runs_late or not is_late):
            try:
                self.jobs.submit(
                    schedule,
                    latest,
                    lambda job: self.records.outcome(
                        schedule, _outcomes(dues, next_at, {**earlier, latest: job})
                    ),
                )
            except (ConcurrencyConflict, LogUnavailable):
                raise
            except SemanticError as error:
                if error.retryable:
                    return  # tried again, until the next instant makes this one missed
                reason = error.code
            else:
                return
        self.records.record(schedule, _outcomes(dues, next_at, earlier, reason))


def _outcomes(
    dues: Sequence[str], next_at: str | None, fired: Mapping[str, JobId], reason: str = "late"
) -> tuple[Event, ...]:
    """Return the events of instants of which ``fired`` has the jobs; the others have none."""
    jobs = tuple(ScheduleFired(due=due, job=job, next_at=next_at) for due, job in fired.items())
    missed = [due for due in dues if due not in fired]
    if not missed:
        return jobs
    first, last, number = missed[0], missed[-1], len(missed)
    return (
        ScheduleMissed(first=first, last=last, count=number, reason=reason, next_at=next_at),
        *jobs,
    )
