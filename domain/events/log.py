"""What is said of the log itself, on the stream ``log``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogArchived:
    """A stretch of the log stands in a file; of its events only those still needed stay here.

    Attributes:
        first_position: Where the stretch begins.
        last_position: Where it ends.
        base_hash: Hash of the event before the stretch.
        last_hash: Hash of its last event: what the next event of the log follows.
        file: Name of the file.
    """

    first_position: int
    last_position: int
    base_hash: str
    last_hash: str
    file: str


LogEvent = LogArchived
