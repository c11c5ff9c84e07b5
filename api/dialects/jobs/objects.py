"""Jobs as clients see them, with what they found in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, cast

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
    JobParent,
    JobTimings,
    JobToolCall,
    JobUsage,
    WaitingName,
)
from api.dialects.jobs.webhooks import webhook_object
from api.http.messages import Caller
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.divergence import PromptDivergence
from domain.chat.generation import EmittedCall
from domain.chat.stored_answer import StoredAnswer
from domain.errors import JobNotFound
from domain.job.eta import Forecast, awaiting_model
from domain.job.listing import metadata_of, tags_of
from domain.job.state import Job
from domain.job.stranded import awaits_model
from domain.log.trace import trace_id_of
from domain.values import JobId, JobStatus, Predecessor, Priority, Timings, Usage, WaitingFor
from domain.webhook.delivery import (
    Webhook,
)


def cache_object(diagnosis: CacheDiagnosis) -> JobCache:
    """Return the cache part of a job object."""
    divergence = diagnosis.divergence
    return {
        "prompt_tokens": diagnosis.prompt_tokens,
        "cached_tokens": diagnosis.cached_tokens,
        "source": diagnosis.source,
        "known_tokens": diagnosis.known_tokens,
        "missed_tokens": diagnosis.missed_tokens,
        "compared_with": diagnosis.compared_with,
        "divergence": None if divergence is None else _divergence(diagnosis, divergence),
    }


def _divergence(diagnosis: CacheDiagnosis, divergence: PromptDivergence) -> JobDivergence:
    return {
        "at_token": diagnosis.cached_tokens,
        "cause": divergence.cause.value,
        "place": divergence.place,
        "before": divergence.before,
        "now": divergence.now,
    }


def job_object(view: Job, forecast: Forecast | None) -> JobObject:
    """Return a job without its answer.

    Args:
        forecast: Its forecast, if it is open and has one.
    """
    waiting = _waiting(view, forecast)
    path = f"/v1/jobs/{view.id}"
    return {
        "id": view.id,
        "object": "job",
        "status": view.status.value,
        "kind": view.kind,
        "protocol": view.submitted.protocol,
        "model": view.submitted.model,
        "bound_model": view.submitted.bound_model,
        "answered_by": view.answered_by,
        "priority": cast("Literal['interactive', 'batch']", view.submitted.priority),
        "urgency": view.submitted.urgency,
        "agent_id": view.submitted.agent,
        "tags": tags_of(view.submitted.labels),
        "metadata": metadata_of(view.submitted.labels),
        "start_after": view.submitted.start_after,
        "forked_from": _parent(view),
        "after": after_objects(view.submitted.after),
        "start_by": view.submitted.deadline,
        "finish_by": view.submitted.finish_deadline,
        "request_id": view.correlation_id,
        "trace_id": trace_id_of(view.submitted.trace),
        "created_at": view.created_at,
        "started_at": view.started_at,
        "finished_at": view.finished_at,
        "attempt": view.attempt,
        "cancel_requested": view.cancel_requested,
        "stop_reason": view.stop_reason,
        "stop_sequence": view.stop_sequence,
        "usage": _usage(view.usage),
        "timings": _timings(view.timings),
        "error": (
            {"code": view.error, "message": view.error_message or ""} if view.error else None
        ),
        "links": {
            "self": path,
            "stream": f"{path}/stream",
            "cancel": f"{path}/cancel",
            "retry": f"{path}/retry",
        },
        "queue_position": None if waiting is None else waiting.position,
        "waiting_for": _held_for(view) or _waiting_for(waiting),
        "estimate": _estimate(view, forecast),
    }


def _parent(view: Job) -> JobParent | None:
    asked = view.submitted
    return None if asked.parent is None else {"id": asked.parent, "at": asked.parent_tokens}


def _usage(usage: Usage) -> JobUsage:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _timings(timings: Timings) -> JobTimings:
    return {
        "queued_ms": timings.queued_ms,
        "admission_ms": timings.admission_ms,
        "restore_ms": timings.restore_ms,
        "prefill_ms": timings.prefill_ms,
        "first_token_ms": timings.first_token_ms,
        "decode_ms": timings.decode_ms,
    }


def after_objects(after: Sequence[Predecessor]) -> list[AfterObject]:
    """Return the jobs that a job waits for."""
    return [{"name": one.name, "job": one.job, "condition": one.condition.value} for one in after]


def _held_for(view: Job) -> WaitingName | None:
    if view.status is not JobStatus.HELD:
        return None
    return "jobs" if view.submitted.after else "time"


def full_job_object(
    view: Job,
    forecast: Forecast | None,
    *,
    answer: StoredAnswer | None,
    diagnosis: CacheDiagnosis | None,
    webhooks: Sequence[Webhook],
) -> JobObject:
    """Return a job with its answer, its cache diagnosis and its webhooks."""
    job = job_object(view, forecast)
    job["output"] = None if answer is None else _output(answer)
    job["cache"] = None if diagnosis is None else cache_object(diagnosis)
    job["webhooks"] = [webhook_object(webhook) for webhook in webhooks]
    return job


def _output(answer: StoredAnswer) -> JobOutput:
    output: JobOutput = {"text": answer.text, "thinking": answer.thinking}
    if answer.calls:
        output["tool_calls"] = [_tool_call(call) for call in answer.calls]
    if answer.vectors is not None:
        output["embeddings"] = [base64_of(vector) for vector in answer.vectors.each()]
    if answer.logprobs is not None:
        output["logprobs"] = response_logprobs(answer.logprobs)
    return output


def _tool_call(call: EmittedCall) -> JobToolCall:
    return {
        "arguments": call.arguments,
        "id": call.id,
        "is_complete": call.is_complete,
        "name": call.name,
    }


def _waiting(view: Job, forecast: Forecast | None) -> Forecast | None:
    """Return the forecast of a job that waits; it may have begun after the forecast was made."""
    if forecast is None:
        return None
    if forecast.position is None and forecast.waiting_for is not WaitingFor.MODEL:
        return None
    is_in_engine = forecast.waiting_for is not None and view.status is JobStatus.RUNNING
    return forecast if is_in_engine or view.status is JobStatus.QUEUED else None


def _waiting_for(waiting: Forecast | None) -> WaitingName | None:
    """Return why a job waits; one that has no turn yet waits for a place."""
    if waiting is None:
        return None
    return (waiting.waiting_for or WaitingFor.PLACE).value


def _estimate(view: Job, forecast: Forecast | None) -> JobEstimate | None:
    if forecast is None or forecast.end_s is None:
        return None
    # The job may have begun after the forecast was made.
    start_s = forecast.start_s if view.status is JobStatus.QUEUED else None
    return {"starts_in_s": rounded(start_s), "finishes_in_s": rounded(forecast.end_s)}


def rounded(seconds: float | None) -> float | None:
    """Return an estimate in tenths of a second; it is not more accurate than that."""
    return None if seconds is None else round(seconds, 1)


def load_job(app: App, job_id: JobId, caller: Caller) -> JobObject:
    """Return a job with its answer, what it found in the cache, and its webhooks.

    Raises:
        JobNotFound: There is no such job.
    """
    records = app.records
    view = records.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    return full_job_object(
        view,
        wait_of(app, view),
        answer=records.read_stored(view),
        # Before its first attempt a job has looked nothing up in the cache.
        diagnosis=records.diagnose(job_id) if view.attempt else None,
        # The URLs of the settings belong to the operator.
        webhooks=[
            one
            for one in app.webhook_store.of_subject(job_id, limit=SHOWN_MAX)
            if caller.sees in {None, one.owner}
        ],
    )


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


#: Most webhooks in the object of a job.
SHOWN_MAX: Final = 20
