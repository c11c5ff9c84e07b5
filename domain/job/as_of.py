"""The list of jobs as it was at some position of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from domain.job.state import Job, fold_recorded, is_job_event, job_id_of
from domain.log.record import GENESIS_HASH, LogHead, RecordedEvent
from domain.values import JobId, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAsOf:
    """The list of jobs at a position of the log.

    Attributes:
        head: The last event.
        at: RFC 3339 instant of its record; ``None`` for an empty log.
        jobs: Newest acceptance first, as the jobs projection lists them.
    """

    head: LogHead
    at: str | None
    jobs: tuple[Job, ...]

    def counts(self) -> dict[JobStatus, int]:
        """Return the number of jobs by status, every status named."""
        counts = dict.fromkeys(JobStatus, 0)
        for job in self.jobs:
            counts[job.status] += 1
        return counts


def fold_jobs_as_of(events: Iterable[RecordedEvent]) -> JobsAsOf:
    """Return the list of jobs after all events of a log, or of some jobs, from the first on."""
    views: dict[JobId, Job] = {}
    last: RecordedEvent | None = None
    for last in events:
        if is_job_event(last):
            job_id = job_id_of(last)
            views[job_id] = fold_recorded(views.get(job_id), last)
    return JobsAsOf(
        head=LogHead(position=last.position, hash=last.hash)
        if last
        else LogHead(position=0, hash=GENESIS_HASH),
        at=last.recorded_at if last else None,
        jobs=tuple(reversed(views.values())),
    )
