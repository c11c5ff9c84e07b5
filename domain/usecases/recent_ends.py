"""The jobs that have ended lately, followed from event to event."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from domain.events.job import JobCancelled, JobCompleted, JobExpired, JobFailed, JobRetried
from domain.job.listing import JobViews
from domain.job.state import Job
from domain.log.record import LogHead, RecordedEvent
from domain.usecases.cache_diagnostics import CacheDiagnosis
from domain.values import JobId, Owner

#: Ended jobs that are kept.
KEPT_MAX: Final = 100
#: Events that one read of the log returns.
PAGE_EVENTS: Final = 500
#: Events since the last call from which on the jobs are read anew.
BEHIND_MAX: Final = 10_000
#: Jobs whose cache is diagnosed in one call, since each reads the texts of several requests.
DIAGNOSED_MAX: Final = 8
_ENDS: Final = tuple(one.__name__ for one in (JobCompleted, JobFailed, JobCancelled, JobExpired))
_TYPES: Final = (*_ENDS, JobRetried.__name__)


class EndLog(Protocol):
    """The parts of ``EventLog`` that are read here."""

    def head(self) -> LogHead:
        """See ``EventLog.head``."""
        ...

    def read_all(
        self, *, after: int = 0, limit: int = 100, types: Sequence[str] = ()
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.read_all``."""
        ...


class EndedJob:
    """A job that has ended, and what it found in the cache, once that is known."""

    def __init__(self, view: Job) -> None:
        self.view = view
        self.diagnosis: CacheDiagnosis | None = None
        self.is_diagnosed = False


class RecentEnds:
    """The last ended jobs; the caller holds a lock.

    The first call reads the jobs that were accepted last; later calls read the events since then.

    Args:
        log: The event log.
        views: The jobs projection.
        diagnose: Returns what a job found in the cache.
    """

    def __init__(
        self,
        log: EndLog,
        views: JobViews,
        diagnose: Callable[[JobId], CacheDiagnosis | None],
    ) -> None:
        self._log = log
        self._views = views
        self._diagnose = diagnose
        self._position: int | None = None
        #: By job, the one that ended last at the end.
        self._ended: OrderedDict[JobId, EndedJob] = OrderedDict()

    def latest(self, limit: int, owner: Owner | None = None) -> tuple[EndedJob, ...]:
        """Return the jobs that ended last, the latest first.

        Args:
            limit: Most jobs.
            owner: Only jobs of this API key.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        head, position = self._log.head().position, self._position
        if position is None or head - position > BEHIND_MAX:
            self._begin()
            position = head
        self._position = max(self._follow(position), head)
        ended = reversed(self._ended.values())
        shown = [one for one in ended if owner is None or one.view.submitted.owner == owner][:limit]
        for job in [one for one in shown if not one.is_diagnosed][:DIAGNOSED_MAX]:
            job.diagnosis, job.is_diagnosed = self._diagnose(job.view.id), True
        return tuple(shown)

    def _begin(self) -> None:
        self._ended.clear()
        views = [one for one in self._views.page(limit=KEPT_MAX).jobs if one.status.is_terminal]
        for view in sorted(views, key=lambda one: one.position):
            self._ended[view.id] = EndedJob(view)

    def _follow(self, position: int) -> int:
        is_behind = True
        while is_behind:
            page = self._log.read_all(after=position, limit=PAGE_EVENTS, types=_TYPES)
            for recorded in page[-KEPT_MAX:]:
                self._add(JobId(recorded.stream))
            position = page[-1].position if page else position
            is_behind = len(page) == PAGE_EVENTS
        return position

    def _add(self, job_id: JobId) -> None:
        self._ended.pop(job_id, None)
        view = self._views.get(job_id)
        if view is None or not view.status.is_terminal:
            return  # it was retried
        self._ended[job_id] = EndedJob(view)
        if len(self._ended) > KEPT_MAX:
            self._ended.popitem(last=False)
