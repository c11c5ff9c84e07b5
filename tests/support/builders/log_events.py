"""Appends events to a log, for tests that do not care about versions."""

from __future__ import annotations

from domain.events.event import Event
from domain.log.ports import EventLog
from domain.log.record import RecordedEvent
from domain.values import StreamName
from tests.support.builders.job_events import draft


def append(log: EventLog, stream: str, *events: Event) -> tuple[RecordedEvent, ...]:
    """Append events at the end of a stream and return them as they were recorded."""
    name = StreamName(stream)
    drafts = [draft(event) for event in events]
    return log.append(name, drafts, expected_version=len(log.load(name)))
