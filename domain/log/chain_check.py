"""Checks a stretch of the hash chain of the log, with an upper limit of work for each call.

``semantic log verify`` checks the whole log with its archives and signed checkpoints; this
check serves readers that may only ask for a little at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from domain.errors import CorruptLog
from domain.events.worker import LogArchived
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import GENESIS_HASH, EventFilter, LogHead, verify_link


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStretch:
    """The result of a check.

    Attributes:
        before: The event before the first checked one; position 0 for the beginning of the log.
        through: The last event that fits.
        head: The last event of the log.
        archived_through: Last position that is in an archive; the check begins behind it.
        fault: The first event that does not fit; ``None`` if all do.
    """

    before: LogHead
    through: LogHead
    head: LogHead
    archived_through: int
    fault: CorruptLog | None = None


def check_stretch(log: EventLog, *, after: int, limit: int) -> CheckedStretch:
    """Check position, link and hash of the events after a position.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    head, anchor = log.head(), _anchor(log)
    start = min(max(after, anchor.position), head.position)
    before = through = anchor
    fault: CorruptLog | None = None
    try:
        if start > anchor.position:
            before = through = _head_at(log, start)
        for event in log.select(after=start, limit=limit):
            through = verify_link(event, through)
    except CorruptLog as error:
        fault = error
    return CheckedStretch(
        before=before,
        through=through,
        head=head,
        archived_through=anchor.position,
        fault=fault,
    )


def _anchor(log: EventLog) -> LogHead:
    """Return the last archived event, which the rest of the log follows."""
    last = log.select_before(EventFilter(types=[LogArchived.__name__]), limit=1)
    if not last:
        return LogHead(position=0, hash=GENESIS_HASH)
    event = decode_recorded(last[0])
    assert isinstance(event, LogArchived)
    return LogHead(position=event.last_position, hash=event.last_hash)


def _head_at(log: EventLog, position: int) -> LogHead:
    found = log.select(after=position - 1, limit=1)
    if not found or found[0].position != position:
        raise CorruptLog(position, "the event is missing")
    return LogHead(position=position, hash=found[0].hash)
