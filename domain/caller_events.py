"""What callers do to a job that exists already."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttached:
    """A repeated request joined this job instead of starting another.

    Attributes:
        reason: ``idempotency_key``, ``retry``, ``same_session`` or ``same_answer``.
        request_id: The request that joined.
    """

    reason: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHidden:
    """Its caller deleted the answer: nobody is told it in its dialect any more.

    The texts stay in the log until its agent is forgotten.
    """
