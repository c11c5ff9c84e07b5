"""What the core needs from outside. Each port is small and its docstring is its contract.

Ports are synchronous and may be called from any thread unless their docstring forbids it; the api
calls them through a thread pool. Only ``ItemSource`` is asynchronous, because a stream that waits
must not hold a thread.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from domain.values import (
    EventId,
    JobId,
)


class Clock(Protocol):
    """Time, so that tests can own it."""

    def now(self) -> datetime:
        """Return the present instant in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...


class IdSource(Protocol):
    """Fresh names and numbers."""

    def job_id(self) -> JobId:
        """Return a new job id, ``job-`` and a UUIDv7 in hex: sorts by creation."""
        ...

    def event_id(self) -> EventId:
        """Return a new UUIDv7."""
        ...

    def seed(self) -> int:
        """Return a random seed in ``[0, SEED_MAX]``."""
        ...
