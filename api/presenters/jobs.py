"""A row of the jobs projection as clients see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from api.background.webhooks import webhook_object
from api.presenters.cache_diagnostics import cache_object
from api.schemas.replies import JobEstimate, JobObject, JobOutput
from domain.job.eta import Forecast
from domain.job.view import JobView
from domain.usecases.cache_diagnostics import CacheDiagnosis
from domain.values import JobStatus
from domain.webhook.delivery import Webhook


def job_object(view: JobView, forecast: Forecast | None) -> JobObject:
    """Return a job without its answer.

    Args:
        view: The job.
        forecast: Its forecast, if it is open and has one.
    """
    usage = view.usage
    path = f"/v1/jobs/{view.id}"
    return {
        "id": view.id,
        "object": "job",
        "status": view.status.value,
        "protocol": view.protocol,
        "model": view.model,
        "priority": cast("Literal['interactive', 'batch']", view.priority),
        "agent_id": view.agent,
        "start_by": view.deadline,
        "finish_by": view.finish_deadline,
        "request_id": view.correlation_id,
        "created_at": view.created_at,
        "started_at": view.started_at,
        "finished_at": view.finished_at,
        "attempt": view.attempt,
        "cancel_requested": view.cancel_requested,
        "stop_reason": view.stop_reason,
        "stop_sequence": view.stop_sequence,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
        "timings": {
            "queued_ms": view.timings.queued_ms,
            "prefill_ms": view.timings.prefill_ms,
            "first_token_ms": view.timings.first_token_ms,
            "decode_ms": view.timings.decode_ms,
        },
        "error": (
            {"code": view.error, "message": view.error_message or ""} if view.error else None
        ),
        "links": {
            "self": path,
            "stream": f"{path}/stream",
            "cancel": f"{path}/cancel",
            "retry": f"{path}/retry",
        },
        "queue_position": _queue_position(view, forecast),
        "estimate": _estimate(view, forecast),
    }


def full_job_object(
    view: JobView,
    forecast: Forecast | None,
    *,
    output: JobOutput | None,
    diagnosis: CacheDiagnosis | None,
    webhooks: Sequence[Webhook],
) -> JobObject:
    """Return a job with its answer, what it found in the cache, and its webhooks."""
    job = job_object(view, forecast)
    job["output"] = output
    job["cache"] = None if diagnosis is None else cache_object(diagnosis)
    job["webhooks"] = [webhook_object(webhook) for webhook in webhooks]
    return job


def _queue_position(view: JobView, foreseen: Forecast | None) -> int | None:
    if foreseen is None or view.status is not JobStatus.QUEUED:
        return None
    return foreseen.position


def _estimate(view: JobView, foreseen: Forecast | None) -> JobEstimate | None:
    if foreseen is None or foreseen.end_s is None:
        return None
    # It may have begun since what is foreseen was looked at.
    start_s = foreseen.start_s if view.status is JobStatus.QUEUED else None
    return {"starts_in_s": rounded(start_s), "finishes_in_s": rounded(foreseen.end_s)}


def rounded(seconds: float | None) -> float | None:
    """Return an estimate no finer than it can be meant."""
    return None if seconds is None else round(seconds, 1)
