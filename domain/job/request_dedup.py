"""When a repeated request is attached to a job instead of starting another; see ADR 0006.

A client that lost its answer repeats its request, and must get the job that it started instead of a
second one. But two equal requests may be meant as two, and with random sampling they have two
different answers. So a repeat takes the place of one lost reader. A job that has a reader, or whose
answer was delivered completely, is shared only with a request whose answer would be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from domain.job.state import Job
from domain.values import JobId, JobStatus


class Readership(StrEnum):
    """Whether a client reads the answer of a job."""

    READING = "reading"
    LOST = "lost"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRepeat:
    """The properties of a request that decide whether it may be attached.

    Attributes:
        is_retry: The client marks it as a retry.
        has_session: It belongs to a conversation, whose requests come one after another.
        is_repeatable: Greedy, or with the caller's own seed: a second run has the same answer.
        since: Instant in the form of the log; jobs that ended earlier are too old.
    """

    is_retry: bool
    has_session: bool
    is_repeatable: bool
    since: str

    @property
    def may_join(self) -> bool:
        """Whether the request can be attached to any job."""
        return self.is_retry or self.has_session


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTarget:
    """The job to join, and the reason that the log keeps."""

    job_id: JobId
    reason: str


def job_to_join(
    alike: Sequence[Job], repeat: RequestRepeat, readership: Callable[[JobId], Readership]
) -> JoinTarget | None:
    """Return the job that a request is attached to, ``None`` if it gets a job of its own.

    Args:
        alike: Jobs of equal requests, newest first.
        readership: Returns whether a client reads a job.
    """
    if not repeat.may_join:
        return None
    found: list[tuple[int, JoinTarget]] = []
    for view in alike:
        state = readership(view.id)
        reason = _reason(view, repeat, state)
        if reason is not None:
            rank = 0 if state is Readership.LOST else 1
            found.append((rank, JoinTarget(job_id=view.id, reason=reason)))
    return min(found, key=lambda one: one[0])[1] if found else None


def is_read_by_another(
    alike: Sequence[Job], repeat: RequestRepeat, readership: Callable[[JobId], Readership]
) -> bool:
    """Whether the request would be attached to an open job if its reader had just left."""
    return repeat.may_join and any(
        readership(view.id) is Readership.READING and _is_joinable(view, repeat) for view in alike
    )


def _reason(view: Job, repeat: RequestRepeat, state: Readership) -> str | None:
    if state is Readership.GIVEN_UP or not _is_joinable(view, repeat):
        return None
    if state is Readership.LOST or (state is Readership.UNKNOWN and repeat.is_retry):
        return "retry" if repeat.is_retry else "same_session"
    is_open = not view.status.is_terminal
    if state is Readership.UNKNOWN:
        # The api has restarted: readers of ended jobs are forgotten, an open job has no reader.
        return "same_session" if is_open else None
    if repeat.is_repeatable and (is_open or repeat.is_retry):
        return "same_answer"
    return None


def _is_joinable(view: Job, repeat: RequestRepeat) -> bool:
    if view.cancel_requested:
        return False
    if view.status is JobStatus.COMPLETED:
        return (view.finished_at or "") >= repeat.since
    return not view.status.is_terminal
