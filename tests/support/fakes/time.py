"""Clock and ids that tests own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from domain.values import EventId, JobId


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class SequentialIds:
    """Counts."""

    def __init__(self) -> None:
        self._next = 0

    def _draw(self) -> int:
        self._next += 1
        return self._next

    def job_id(self) -> JobId:
        return JobId(f"job-{self._draw():032x}")

    def event_id(self) -> EventId:
        return EventId(f"{self._draw():032x}")

    def seed(self) -> int:
        return self._draw()
