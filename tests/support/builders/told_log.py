"""A log in memory that a test tells events, each a second after the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from domain.events.event import Event
from domain.log.record import Append, Draft, RecordedEvent
from domain.values import Digest, StreamName
from tests.support.builders.job_events import draft
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock


class ToldLog(InMemoryEventLog):
    """``tell`` appends to a stream, whatever its version.

    Attributes:
        rivals: Events of other writers with their streams; each append lets the first one of them
            go before its own.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rivals: list[tuple[str, Event]] = []
        super().__init__(self.clock)

    def append(
        self,
        stream: StreamName,
        drafts: Sequence[Draft],
        *,
        expected_version: int,
        payloads: Mapping[Digest, bytes] | None = None,
        also: Append | None = None,
    ) -> tuple[RecordedEvent, ...]:
        if self.rivals:
            rival, event = self.rivals.pop(0)
            self.tell(rival, event)
        recorded = super().append(
            stream, drafts, expected_version=expected_version, payloads=payloads, also=also
        )
        self.clock.advance(1)
        return recorded

    def tell(
        self, stream: str, *events: Event, payloads: Mapping[Digest, bytes] | None = None
    ) -> None:
        rivals, self.rivals = self.rivals, []
        for event in events:
            name = StreamName(stream)
            version = len(self.load(name))
            self.append(name, [draft(event)], expected_version=version, payloads=payloads)
        self.rivals = rivals

    def told(self) -> tuple[RecordedEvent, ...]:
        """Return all events."""
        return self.read_all(limit=self.head().position)


def second(number: int) -> str:
    """Return the instant of the event after ``number`` others."""
    return f"2026-01-01T00:00:{number:02d}.000000Z"
