"""A log in memory that a test tells events, each a second after the one before."""

from __future__ import annotations

from domain.events.event import Event
from domain.log.record import RecordedEvent
from domain.values import StreamName
from tests.support.builders.job_events import draft
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock


class ToldLog(InMemoryEventLog):
    """``tell`` appends to a stream, whatever its version."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__(self.clock)

    def tell(self, stream: str, *events: Event) -> None:
        for event in events:
            name = StreamName(stream)
            self.append(name, [draft(event)], expected_version=len(self.load(name)))
            self.clock.advance(1)

    def told(self) -> tuple[RecordedEvent, ...]:
        """Return all events."""
        return self.read_all(limit=self.head().position)


def second(number: int) -> str:
    """Return the instant of the event after ``number`` others."""
    return f"2026-01-01T00:00:{number:02d}.000000Z"
