"""A row of the jobs projection as clients see it."""

from __future__ import annotations

from typing import Literal, cast

from api.background.webhooks import SHOWN_MAX, webhook_object
from api.presenters.cache_diagnostics import cache_object
from api.schemas.replies import JobEstimate, JobObject
from api.services import Services
from api.streaming.log_backfill import read_output
from domain.job.eta import EtaSource, Forecast
from domain.job.view import JobView
from domain.values import JobStatus


def job_object(view: JobView, outlook: EtaSource) -> JobObject:
    """Return a job without its answer; blocks."""
    usage = view.usage
    foreseen = None if view.status.is_terminal else outlook.of(view.id)
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
        "queue_position": _queue_position(view, foreseen),
        "estimate": _estimate(view, foreseen),
    }


def full_job_object(view: JobView, services: Services) -> JobObject:
    """Return a job with its answer, what it found in the cache, and its webhooks; blocks."""
    job = job_object(view, services.outlook)
    job["output"] = read_output(view, services)
    # Before its first attempt nothing was looked up, and the answer to a submission need not ask.
    job["cache"] = cache_object(view.id, services) if view.attempt else None
    told = services.webhooks.store.of_subject(view.id, limit=SHOWN_MAX)
    job["webhooks"] = [webhook_object(webhook) for webhook in told]
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
