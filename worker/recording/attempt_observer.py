"""Follows the attempts of this worker: names their log lines."""

from __future__ import annotations

from structlog.contextvars import bind_contextvars

from domain.log.trace import trace_id_of
from domain.usecases.jobs.attempts import AttemptReport
from domain.usecases.jobs.commit import LoadedJob


class JobObserver:
    """``AttemptObserver`` of a worker."""

    def loaded(self, job: LoadedJob) -> None:
        """Let the log lines of this thread name the request and its trace."""
        submitted = job.job.submitted
        trace_id = None if submitted is None else trace_id_of(submitted.trace)
        bind_contextvars(request_id=job.correlation_id)
        if trace_id is not None:
            bind_contextvars(trace_id=trace_id)

    def ended(self, report: AttemptReport) -> None:
        """Note nothing."""
