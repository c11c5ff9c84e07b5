"""Follows the attempts of this worker: names their log lines and exports their spans."""

from __future__ import annotations

import structlog
from structlog.contextvars import bind_contextvars

from domain.events.worker import WorkerLost
from domain.log.ports import EventLog
from domain.log.trace import trace_id_of
from domain.usecases.jobs.attempts import AttemptReport
from domain.usecases.jobs.commit import LoadedJob
from domain.values import StreamName, WorkerId
from ops.tracing.span import SpanSink
from worker.recording.attempt_spans import history_of, spans_of

_log = structlog.get_logger(__name__)


class JobObserver:
    """``AttemptObserver`` of a worker.

    Args:
        spans: Receives the spans of sampled traces.
        log: Knows when the workers of lost attempts were found dead.
    """

    def __init__(self, spans: SpanSink, log: EventLog) -> None:
        self._spans = spans
        self._log = log

    def loaded(self, job: LoadedJob) -> None:
        """Let the log lines of this thread name the request and its trace."""
        trace_id = trace_id_of(job.job.submitted.trace)
        bind_contextvars(request_id=job.job.correlation_id)
        if trace_id is not None:
            bind_contextvars(trace_id=trace_id)

    def ended(self, report: AttemptReport) -> None:
        """Log the end of an attempt; export its spans and those of attempts that died before."""
        _log_end(report)
        if not self._spans.is_on:
            return
        try:
            losses = self._losses(report)
            for span in spans_of(report, losses, has_texts=self._spans.has_texts):
                self._spans.put(span)
        except Exception:  # noqa: BLE001 - the job has ended in the log and must be delivered
            _log.exception("spans_failed")

    def _losses(self, report: AttemptReport) -> dict[WorkerId, str]:
        workers = {lost.started.worker for lost in history_of(report).lost}
        return {
            worker: recorded.recorded_at
            for worker in workers
            for recorded in self._log.load(StreamName(worker))
            if recorded.type == WorkerLost.__name__
        }


def _log_end(report: AttemptReport) -> None:
    run = report.run
    if run is None:
        _log.debug("job_ended_unstarted", error=report.error)
        return
    usage = run.outcome.usage
    _log.debug(
        "attempt_ended",
        attempt=run.task.attempt,
        error=report.error,
        stop_reason=run.outcome.stop_reason.value,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )
