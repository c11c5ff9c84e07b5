"""Events of a schedule, on its stream ``schedule-…``; instants are RFC 3339."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import Digest, Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleAdded:
    """A schedule exists; from here on it submits jobs.

    Attributes:
        name: Unique among the schedules of its owner that are not removed.
        cron: Five fields.
        timezone: Name of the IANA time zone in which ``cron`` is read.
        job: Digest of the body of each job, as JSON.
        runs_late: Whether the latest of the instants that were missed is made up for.
        next_at: Its first instant.
        owner: Name of the API key of the request; ``None`` without keys.
        keyspace: As in ``NewJob``, for its jobs.
    """

    name: str
    cron: str
    timezone: str
    job: Digest
    runs_late: bool
    next_at: str
    owner: Owner | None = None
    keyspace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePaused:
    """It submits nothing until it is resumed; instants meanwhile are not missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResumed:
    """It goes on at ``next_at``; the reason is ``api`` or ``clock_set_back``."""

    next_at: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMissed:
    """Instants passed without a job.

    Attributes:
        first: The first of them.
        last: The last of them.
        count: How many; at most ``domain.batch.schedules.MISSED_MAX`` are counted.
        reason: ``late``, or the code of the error that refused the job.
        next_at: The next instant.
    """

    first: str
    last: str
    count: int
    reason: str
    next_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFired:
    """The job of an instant was submitted; there is one job for each instant.

    Attributes:
        due: The instant.
        next_at: The next one; ``None`` if there is none.
    """

    due: str
    job: str
    next_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRemoved:
    """The owner removed it; its jobs stay."""


ScheduleEvent = (
    ScheduleAdded
    | SchedulePaused
    | ScheduleResumed
    | ScheduleMissed
    | ScheduleFired
    | ScheduleRemoved
)
