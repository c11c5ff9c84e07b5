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

from api.http.bodies import WebhookBody
from domain.errors import InvalidRequest, RateLimited
from domain.events.event import Event
from domain.events.job import JobSubmitted
from domain.job.listing import JobFilter, JobViews
from domain.values import (
    ATTEMPTS_MAX,
    WORKER_DEATHS_MAX,
    AgentId,
    JobStatus,
    Owner,
    Priority,
)
from domain.webhook.targets import parse_target, refuse_literal

#: How long an interactive job may wait for memory before further ones are refused, in seconds.
MEMORY_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Limits of every job that this process accepts.

    Attributes:
        max_tokens_default: Most tokens of a request that names no limit.
        attempts_max: Attempts that may die or fail before the job fails for good.
        worker_deaths_max: Workers in a row that may die on the job before its first item.
        queue_limit: Most interactive jobs that may wait.
        batch_queue_limit: Most batch jobs that may wait.
        memory_wait_s: As ``MEMORY_WAIT_S``; 0 for any time.
        disconnect_grace_s: How long a job whose client left waits for the client's next try.
        dedup_grace_s: How long a repeat waits for the first client to leave.
        join_window_s: How long after its end a job can be joined.
    """

    max_tokens_default: int = 4096
    attempts_max: int = ATTEMPTS_MAX
    worker_deaths_max: int = WORKER_DEATHS_MAX
    queue_limit: int = 1000
    batch_queue_limit: int = 100_000
    memory_wait_s: float = MEMORY_WAIT_S
    disconnect_grace_s: float = 1.0
    dedup_grace_s: float = 0.25
    join_window_s: float = 600.0

    def queue_limit_of(self, priority: Priority) -> int:
        """Return the most jobs of a queue that may wait."""
        return self.queue_limit if priority is Priority.INTERACTIVE else self.batch_queue_limit


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
            views.page(JobFilter(agent=agent, status=status), limit=most)
            for status in (JobStatus.QUEUED, JobStatus.RUNNING)
        )
        if sum(len(page.jobs) for page in pages) + jobs > most:
            raise RateLimited(f"this agent may have {most} jobs open at once")


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


_FIELD: Final = "webhook.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPolicy:
    """Rules for the webhooks of requests.

    Attributes:
        from_requests: Whether a request may name a webhook.
        allow_hosts: Hosts that may have any address.
    """

    from_requests: bool = True
    allow_hosts: tuple[str, ...] = ()

    def url_of(self, wire: WebhookBody | None) -> str | None:
        """Return the URL that a request names, ``None`` if it names none.

        A host name is resolved, and its address checked, at each delivery.

        Raises:
            InvalidRequest: The URL may not be called.
        """
        if wire is None:
            return None
        if not self.from_requests:
            raise InvalidRequest("requests may not name webhooks here", field=_FIELD)
        try:
            refuse_literal(parse_target(wire.url), self.allow_hosts)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=_FIELD) from error
        return wire.url


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of batches and files.

    Attributes:
        lines_max: Most requests of an Anthropic batch.
        file_lines_max: Most lines of an OpenAI batch.
        window_s: How long a batch may take, in seconds.
        results_kept_s: How long the results of an Anthropic batch can be read after its creation.
        file_kept_s: How long a file is kept if its owner sets no time.
    """

    open_max: int = 100
    lines_max: int = 100_000
    file_lines_max: int = 50_000
    file_bytes_max: int = 200_000_000
    window_s: int = 24 * 3600
    results_kept_s: int = 29 * 24 * 3600
    file_kept_s: int = 30 * 24 * 3600
