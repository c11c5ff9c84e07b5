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


@dataclass(frozen=True, slots=True, kw_only=True)
class TextsErased:
    """Texts that no owner needs were erased; see ``domain.log.text_owners``.

    Attributes:
        payloads: Number of erased texts.
        payload_bytes: Length of the erased texts together.
        jobs: Number of jobs whose texts they were.
        waiting: What is still to be erased: further texts, and open jobs of deleted agents.
        ended_before: The texts of jobs and batches that ended before this RFC 3339 instant went.
        expired_by: The contents of files that expired by this RFC 3339 instant went.
    """

    payloads: int
    payload_bytes: int
    jobs: int
    waiting: int = 0
    ended_before: str | None = None
    expired_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveErased:
    """A file of old events was deleted, as a rule of retention wants.

    Attributes:
        file: Its name.
        last_position: Last position in it.
    """

    file: str
    last_position: int


LogEvent = LogArchived | TextsErased | ArchiveErased
