"""When a repeated request joins a job instead of starting another; ADR 0006 says why.

A client that lost its answer asks again. It must find the job that it started, and not wait for a
second one. But two equal requests may be meant as two, and with random sampling they have two
different answers. So a repeat takes the place of a reader that was lost, one for one; a job that
somebody reads, or whose answer was handed over whole, is joined only by a request that any other
answer would have to equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from domain.job.view import JobView
from domain.values import JobId, JobStatus


class Readership(StrEnum):
    """What is known of those who wait for the answer of a job."""

    READING = "reading"
    LOST = "lost"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRepeat:
    """What a request says of itself.

    Attributes:
        is_retry: The client says that it asked before.
        has_session: It belongs to a conversation, whose requests follow one another.
        is_repeatable: Greedy, or with the caller's own seed: asked twice, the answer is the same.
        since: Instant, as the log writes them; jobs that ended before are too old to join.
    """

    is_retry: bool
    has_session: bool
    is_repeatable: bool
    since: str

    @property
    def may_join(self) -> bool:
        """Whether it is worth looking for a job at all."""
        return self.is_retry or self.has_session


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTarget:
    """The job to join, and the reason that the log keeps."""

    job_id: JobId
    reason: str


def job_to_join(
    alike: Sequence[JobView], repeat: RequestRepeat, readership: Callable[[JobId], Readership]
) -> JoinTarget | None:
    """Return the job whose answer a request should have, if it should have none of its own.

    Args:
        alike: Jobs that asked the same, newest first.
        repeat: The request.
        readership: Who waits for a job.
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
    alike: Sequence[JobView], repeat: RequestRepeat, readership: Callable[[JobId], Readership]
) -> bool:
    """Whether an open job would be joined if its reader turned out to have left just now."""
    return repeat.may_join and any(
        readership(view.id) is Readership.READING and _is_joinable(view, repeat) for view in alike
    )


def _reason(view: JobView, repeat: RequestRepeat, state: Readership) -> str | None:
    if state is Readership.GIVEN_UP or not _is_joinable(view, repeat):
        return None
    if state is Readership.LOST or (state is Readership.UNKNOWN and repeat.is_retry):
        return "retry" if repeat.is_retry else "same_session"
    is_open = not view.status.is_terminal
    if state is Readership.UNKNOWN:
        # The api was started anew: who read an ended job is forgotten, an open one has no reader.
        return "same_session" if is_open else None
    if repeat.is_repeatable and (is_open or repeat.is_retry):
        return "same_answer"
    return None


def _is_joinable(view: JobView, repeat: RequestRepeat) -> bool:
    if view.cancel_requested:
        return False
    if view.status is JobStatus.COMPLETED:
        return (view.finished_at or "") >= repeat.since
    return not view.status.is_terminal
