"""Jobs that are not recorded yet, for tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from domain.chat.request import ChatRequest
from domain.events.job import JobSubmitted
from domain.job.submit import UNSEALED, NewJob
from domain.values import ATTEMPTS_MAX, Priority

_OWN = frozenset(field.name for field in fields(NewJob))


def new_job(request: ChatRequest, **facts: Any) -> NewJob:
    """Return a job; ``facts`` has fields of ``NewJob`` and of its ``JobSubmitted``."""
    own = {"correlation_id": "req_1"} | {k: v for k, v in facts.items() if k in _OWN}
    of_event: dict[str, Any] = {
        "protocol": "jobs",
        "priority": Priority.INTERACTIVE,
        "attempts_max": ATTEMPTS_MAX,
    }
    of_event |= {name: value for name, value in facts.items() if name not in _OWN}
    submitted = JobSubmitted(
        model=request.model,
        request=UNSEALED,
        sampling=request.sampling,
        max_tokens=request.max_tokens,
        **of_event,
    )
    return NewJob(submitted=submitted, request=request, **own)
