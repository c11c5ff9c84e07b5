"""Quotas of each API key, checked when work is appended to the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from domain.errors import QuotaExceeded, RateLimited
from domain.events.agent import AgentForked, AgentRegistered
from domain.events.batch import BatchSubmitted, FileCreated
from domain.events.event import Event
from domain.events.job import JobSubmitted
from domain.values import Owner

#: How long a measure of the stored bytes counts, in seconds; what is accepted meanwhile is added.
FRESH_S: Final = 30.0
#: The same for a measure from which a request would be refused: deletions soon count.
REFUSAL_FRESH_S: Final = 1.0
_MB: Final = 2**20
_Owned = JobSubmitted | BatchSubmitted | FileCreated | AgentRegistered | AgentForked


class OwnerSums(Protocol):
    """What an owner has in the log."""

    def open_jobs(self, owner: Owner) -> int:
        """Return how many of its jobs are queued or running."""
        ...

    def stored_bytes(self, owner: Owner) -> int:
        """Return the bytes of its requests, answers and files."""
        ...


@dataclass(slots=True)
class _Measure:
    size_bytes: int
    at_s: float


@dataclass(slots=True, kw_only=True)
class KeyQuotas:
    """The quotas of every key. Concurrent requests may overshoot by their number.

    Attributes:
        sums: Counts in the log, so that restarts and jobs of every origin are included.
        jobs_at_once: Most open jobs; ``None``: any.
        stored_bytes_max: Most bytes of requests, answers and files; ``None``: any.
        now_s: Monotonic seconds.
    """

    sums: OwnerSums
    jobs_at_once: int | None = None
    stored_bytes_max: int | None = None
    now_s: Callable[[], float] = time.monotonic
    _measures: dict[Owner, _Measure] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, events: Sequence[Event], size_bytes: int) -> None:
        """Refuse work of a key that has used up a quota; work without an owner passes.

        Args:
            events: What shall be appended.
            size_bytes: Of their texts.

        Raises:
            QuotaExceeded: The key stores too much.
            RateLimited: The key has too many open jobs.
        """
        owned = [event for event in events if isinstance(event, _Owned)]
        owner = next((event.owner for event in owned if event.owner is not None), None)
        if owner is None:
            return
        most = self.jobs_at_once
        begins_job = any(isinstance(event, JobSubmitted) for event in owned)
        if most is not None and begins_job and self.sums.open_jobs(owner) >= most:
            raise RateLimited(f"this key may have {most} jobs open at once")
        if self.stored_bytes_max is not None and size_bytes:
            self._admit_bytes(owner, size_bytes, self.stored_bytes_max)

    def _admit_bytes(self, owner: Owner, size_bytes: int, most: int) -> None:
        measure = self._measure(owner, FRESH_S)
        if measure.size_bytes + size_bytes > most:
            measure = self._measure(owner, REFUSAL_FRESH_S)
        with self._lock:
            if measure.size_bytes + size_bytes > most:
                msg = (
                    f"this key stores {measure.size_bytes / _MB:.1f} MiB of at most "
                    f"{most / _MB:.0f} MiB; erase texts or delete files first"
                )
                raise QuotaExceeded(msg)
            measure.size_bytes += size_bytes

    def _measure(self, owner: Owner, fresh_s: float) -> _Measure:
        known = self._measures.get(owner)
        if known is None or self.now_s() - known.at_s > fresh_s:
            known = _Measure(self.sums.stored_bytes(owner), self.now_s())
            with self._lock:
                self._measures[owner] = known
        return known
