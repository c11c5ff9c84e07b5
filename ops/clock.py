"""The machine's clock and its fresh ids."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime

from domain.values import SEED_MAX, EventId, JobId


class SystemClock:
    """``domain.ports.Clock`` on the machine's clocks."""

    def now(self) -> datetime:
        """Return the present instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()


class RandomIds:
    """``domain.ports.IdSource`` on the machine's randomness."""

    def job_id(self) -> JobId:
        """Return ``job-`` and a UUIDv7 in hex."""
        return JobId("job-" + uuid7_hex())

    def event_id(self) -> EventId:
        """Return a UUIDv7 in hex."""
        return EventId(uuid7_hex())

    def seed(self) -> int:
        """Return a random seed in ``[0, SEED_MAX]``."""
        return secrets.randbelow(SEED_MAX + 1)


def uuid7_hex() -> str:
    """Return a UUID version 7 (RFC 9562 §5.7) as 32 hex digits.

    48 bits of Unix milliseconds, then 74 random bits around the version and variant: ids of
    different milliseconds sort by time.
    """
    millis = time.time_ns() // 1_000_000
    random_a = secrets.randbits(12)
    random_b = secrets.randbits(62)
    value = (millis & (1 << 48) - 1) << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b
    return f"{value:032x}"
