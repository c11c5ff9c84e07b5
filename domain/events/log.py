"""Events of the log itself, on the stream ``log``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogArchived:
    """A range of the log was moved to a file; only events that are still needed stay in the log.

    Attributes:
        first_position: First position of the range.
        last_position: Last position of the range.
        base_hash: Hash of the event before the range.
        last_hash: Hash of the last event of the range, which the next event follows.
        file: Name of the file.
    """

    first_position: int
    last_position: int
    base_hash: str
    last_hash: str
    file: str


LogEvent = LogArchived
