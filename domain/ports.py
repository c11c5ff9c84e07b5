"""The ports that every subject needs: a clock and new ids. Others stand with their subject.

The methods of a port may be called from any thread unless its docstring forbids it.
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

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""


class IdSource(Protocol):
    """Fresh names and numbers."""

    def job_id(self) -> JobId:
        """Return a new job id, ``job-`` and a UUIDv7 in hex: sorts by creation."""

    def event_id(self) -> EventId:
        """Return a new UUIDv7."""

    def seed(self) -> int:
        """Return a random seed in ``[0, SEED_MAX]``."""
