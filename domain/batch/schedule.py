"""A schedule as a fold over its events.

active ──SchedulePaused──> paused ──ScheduleResumed──> active
active ──ScheduleFired, ScheduleMissed──> active
active | paused ──ScheduleRemoved──> removed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NewType

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
from domain.log.record import RecordedEvent

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
