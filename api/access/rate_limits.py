"""Rate limits: requests per minute, requests at once, and the limits of one agent and one key.

A token bucket holds the requests of one minute, so that a burst passes and the mean holds. It is
stored as one number, the virtual scheduling form of the generic cell rate algorithm (ITU-T I.371):
integers, no drift, and the time until the next token is exact.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from domain.errors import RateLimited
from domain.events.event import Event
from domain.events.job import JobSubmitted
from domain.job.listing import JobViews
from domain.values import AgentId, JobStatus, Owner

NS_PER_S: Final = 1_000_000_000
_MINUTE_NS: Final = 60 * NS_PER_S
#: Names with a bucket; beyond, the oldest bucket is dropped, and its name starts with a full one.
NAMES_MAX: Final = 10_000


class Rate:
    """Requests per minute for each of many names.

    One api process serves all requests, so the counts live in its memory: they cost no round trip,
    and a restart resets them.

    Args:
        per_minute: Most requests; also the largest burst. ``None``: any.
        whose: The kind of the names, for the message.
        clock_ns: Monotonic.
    """

    def __init__(
        self,
        per_minute: int | None,
        *,
        whose: str,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._per_minute = per_minute
        self._whose = whose
        self._clock_ns = clock_ns
        #: Requests are counted on the event loop and on threads.
        self._lock = threading.Lock()
        #: When each name's bucket is full again.
        self._full_at_ns: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._full_at_ns)

    def take(self, name: str) -> None:
        """Take one token.

        Raises:
            RateLimited: There is none; ``retry_after_s`` is the time until the next.
        """
        if self._per_minute is None:
            return
        with self._lock:
            self._take(name, self._per_minute)

    def _take(self, name: str, per_minute: int) -> None:
        now_ns = self._clock_ns()
        interval_ns = -(-_MINUTE_NS // per_minute)
        full_at_ns = max(self._full_at_ns.get(name, now_ns), now_ns) + interval_ns
        missing_ns = full_at_ns - now_ns - per_minute * interval_ns
        if missing_ns > 0:
            message = f"this {self._whose} may send {per_minute} requests a minute"
            raise RateLimited(message, retry_after_s=-(-missing_ns // NS_PER_S))
        self._full_at_ns[name] = full_at_ns
        if len(self._full_at_ns) > NAMES_MAX:
            self._forget(now_ns)

    def _forget(self, now_ns: int) -> None:
        """Drop full buckets, which have no effect; where there are none, drop the oldest."""
        full = [name for name, at_ns in self._full_at_ns.items() if at_ns <= now_ns]
        for name in full or [next(iter(self._full_at_ns))]:
            del self._full_at_ns[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Limits of every single agent; requests without an agent are not limited.

    Attributes:
        rate: Generations per minute.
        jobs_at_once: Open jobs, counted in the log: the count survives this process and includes
            jobs of every origin. ``None``: any.
    """

    rate: Rate = field(default_factory=lambda: Rate(None, whose="agent"))
    jobs_at_once: int | None = None

    def count_request(self, agent: AgentId | None) -> None:
        """Count a request.

        Raises:
            RateLimited: Too many within a minute.
        """
        if agent is not None:
            self.rate.take(agent)

    def require_place(self, agent: AgentId | None, views: JobViews, jobs: int = 1) -> None:
        """Refuse jobs of an agent that has enough open ones; blocks.

        Concurrent callers may overshoot by their number.

        Raises:
            RateLimited: Naming the limit.
        """
        most = self.jobs_at_once
        if agent is None or most is None:
            return
        pages = (
            views.page(limit=most, agent=agent, status=status)
            for status in (JobStatus.QUEUED, JobStatus.RUNNING)
        )
        if sum(len(page.jobs) for page in pages) + jobs > most:
            message = f"this agent may have {most} jobs open at once"
            raise RateLimited(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyJobs:
    """The limit of the open jobs of every key; work without an owner has none.

    Attributes:
        open_jobs: Counts the queued and running jobs of a key in the log, so that restarts and jobs
            of every origin are included.
        at_once: Most of them; ``None``: any.
    """

    open_jobs: Callable[[Owner], int]
    at_once: int | None = None

    def admit(self, events: Sequence[Event]) -> None:
        """Refuse to append a job of a key that has enough open ones; blocks.

        Concurrent callers may overshoot by their number.

        Raises:
            RateLimited: Naming the limit.
        """
        if self.at_once is None:
            return
        for event in events:
            owner = event.owner if isinstance(event, JobSubmitted) else None
            if owner is not None and self.open_jobs(owner) >= self.at_once:
                raise RateLimited(f"this key may have {self.at_once} jobs open at once")
