"""A row of the jobs projection as clients see it."""

from __future__ import annotations

from typing import Literal, cast

from api.remainder import read_output
from api.schemas.replies import JobObject
from api.services import Services
from domain.projections import JobView


def job_object(view: JobView) -> JobObject:
    """Return a job without what must be looked up elsewhere."""
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
    }


def full_job_object(view: JobView, services: Services) -> JobObject:
    """Return a job with its place in the queue and its answer; blocks."""
    job = job_object(view)
    job["queue_position"] = None
    job["output"] = read_output(view, services)
    return job
