"""Jobs as clients see them, with what they found in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from api.app import App
from api.dialects.embeddings import base64_of
from api.dialects.encoding import response_logprobs
from api.dialects.jobs.bodies import (
    AfterObject,
    JobCache,
    JobDivergence,
    JobEstimate,
    JobObject,
    JobOutput,
    JobTimings,
    JobToolCall,
    JobUsage,
    WaitingName,
    WebhookObject,
)
from api.http.messages import Caller, shown
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.stored_answer import StoredAnswer
from domain.errors import JobNotFound
from domain.job.eta import Forecast, awaiting_model
from domain.job.listing import metadata_of, tags_of
from domain.job.state import Job
from domain.job.stranded import awaits_model
from domain.log.trace import trace_id_of
from domain.values import JobId, JobStatus, Predecessor, Priority, WaitingFor
from domain.webhook.delivery import Webhook

#: Most webhooks in the object of a job.
SHOWN_MAX: Final = 20


def cache_object(diagnosis: CacheDiagnosis) -> JobCache:
    """Return the cache part of a job object."""
    divergence: JobDivergence | None = None
    if diagnosis.divergence is not None:
        at = diagnosis.cached_tokens
        divergence = shown(JobDivergence, diagnosis.divergence, at_token=at)
    return shown(JobCache, diagnosis, divergence=divergence)


def job_object(view: Job, forecast: Forecast | None) -> JobObject:
    """Return a job without its answer."""
    asked, waiting = view.submitted, _waiting(view, forecast)
    path = f"/v1/jobs/{view.id}"
    estimate: JobEstimate | None = None
    if forecast is not None and forecast.end_s is not None:
        # The job may have begun after the forecast was made.
        start_s = forecast.start_s if view.status is JobStatus.QUEUED else None
        estimate = {"starts_in_s": rounded(start_s), "finishes_in_s": rounded(forecast.end_s)}
    return shown(
        JobObject,
        view,
        asked,
        object="job",
        agent_id=asked.agent,
        tags=tags_of(asked.labels),
        metadata=metadata_of(asked.labels),
        forked_from={"id": asked.parent, "at": asked.parent_tokens} if asked.parent else None,
        after=after_objects(asked.after),
        start_by=asked.deadline,
        finish_by=asked.finish_deadline,
        request_id=view.correlation_id,
        trace_id=trace_id_of(asked.trace),
        usage=shown(JobUsage, view.usage),
        timings=shown(JobTimings, view.timings),
        error={"code": view.error, "message": view.error_message or ""} if view.error else None,
        links={"self": path} | {name: f"{path}/{name}" for name in ("stream", "cancel", "retry")},
        queue_position=None if waiting is None else waiting.position,
        waiting_for=_waiting_for(view, waiting),
        estimate=estimate,
    )


def _waiting_for(view: Job, waiting: Forecast | None) -> WaitingName | None:
    """Return why a job waits; one that has no turn yet waits for a place."""
    if view.status is JobStatus.HELD:
        return "jobs" if view.submitted.after else "time"
    return None if waiting is None else (waiting.waiting_for or WaitingFor.PLACE).value


def after_objects(after: Sequence[Predecessor]) -> list[AfterObject]:
    """Return the jobs that a job waits for."""
    return [shown(AfterObject, one) for one in after]


def _output(answer: StoredAnswer) -> JobOutput:
    output: JobOutput = {"text": answer.text, "thinking": answer.thinking}
    if answer.calls:
        output["tool_calls"] = [shown(JobToolCall, call) for call in answer.calls]
    if answer.vectors is not None:
        output["embeddings"] = [base64_of(vector) for vector in answer.vectors.each()]
    if answer.logprobs is not None:
        output["logprobs"] = response_logprobs(answer.logprobs)
    return output


def _waiting(view: Job, forecast: Forecast | None) -> Forecast | None:
    """Return the forecast of a job that waits; it may have begun after the forecast was made."""
    if forecast is None:
        return None
    if forecast.position is None and forecast.waiting_for is not WaitingFor.MODEL:
        return None
    is_in_engine = forecast.waiting_for is not None and view.status is JobStatus.RUNNING
    return forecast if is_in_engine or view.status is JobStatus.QUEUED else None


def rounded(seconds: float | None) -> float | None:
    """Return an estimate in tenths of a second; it is not more accurate than that."""
    return None if seconds is None else round(seconds, 1)


def load_job(app: App, job_id: JobId, caller: Caller) -> JobObject:
    """Return a job with its answer, what it found in the cache, and its webhooks."""
    view = app.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    job = summarise_job(app, view)
    answer = app.records.read_stored(view)
    job["warning"] = app.records.read_warning(view)
    job["output"] = None if answer is None else _output(answer)
    # Before its first attempt a job has looked nothing up in the cache.
    diagnosis = app.records.diagnose(job_id) if view.attempt else None
    job["cache"] = None if diagnosis is None else cache_object(diagnosis)
    found = app.webhook_store.of_subject(job_id, limit=SHOWN_MAX)
    # The URLs of the settings belong to the operator.
    job["webhooks"] = [webhook_object(one) for one in found if caller.sees in {None, one.owner}]
    return job


def summarise_job(app: App, view: Job) -> JobObject:
    """Return a job without its answer."""
    return job_object(view, wait_of(app, view))


def wait_of(app: App, view: Job) -> Forecast | None:
    """Return the forecast of an open job."""
    if view.status.is_terminal or view.status is JobStatus.HELD:
        return None
    if view.status is JobStatus.QUEUED and awaits_model(view, app.models):
        return awaiting_model(Priority(view.submitted.priority))
    return app.eta.of(view.id)


def webhook_object(webhook: Webhook) -> WebhookObject:
    """Return a webhook as clients see it."""
    return shown(
        WebhookObject,
        webhook,
        object="webhook",
        type=webhook.event,
        last_attempt_at=webhook.last_at,
        next_attempt_at=webhook.next_at,
    )
