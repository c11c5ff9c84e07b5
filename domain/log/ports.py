"""Ports of the event log and of the payloads beside it; each docstring is the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from domain.log.record import Append, Draft, EventFilter, LogHead, Ownership, RecordedEvent
from domain.values import (
    Digest,
    StreamName,
)


class EventReader(Protocol):
    """The reading of streams and of what all of them have."""

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """Return the events of ``stream`` after a version, in order; empty if there is none."""

    def select(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[RecordedEvent, ...]:
        """Return at most ``limit`` events that fit, with a position above ``after``, in order."""

    def head(self) -> LogHead:
        """Return the last position and its hash."""


class EventLog(EventReader, Protocol):
    """The append-only log."""

    def append(
        self,
        stream: StreamName,
        drafts: Sequence[Draft],
        *,
        expected_version: int,
        payloads: Mapping[Digest, bytes] | None = None,
        also: Append | None = None,
    ) -> tuple[RecordedEvent, ...]:
        """Append all of ``drafts`` with their payloads and projections, or nothing.

        Returns only when the events survive a power cut. Drafts whose ``event_id`` already stands
        in this stream are a no-op: the stored events are returned, whatever the version.

        Args:
            stream: Where to append; it begins to exist with its first event.
            drafts: At least one.
            expected_version: Version of the stream that was decided on, 0 for a new one.
            payloads: Bytes by their digest; one that is already stored is left alone.
            also: An append to another stream that is made with this one, or neither is; its events
                are not returned.

        Raises:
            ConcurrencyConflict: A stream is at another version.
            IdempotencyKeyTaken: A submitted job has the key of another job.
            UniqueJobExists: A submitted job is unique, and another job holds that now.
            LogUnavailable: Nothing was written (disk full, locked too long, closed).
        """

    def select_before(
        self, wanted: EventFilter, *, before: int | None = None, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        """Return the last ``limit`` events that fit, in order.

        Their positions are below ``before``; ``None`` is the end of the log.
        """

    def check_writable(self) -> None:
        """Check that the log can be read, and that the last appends were written.

        Raises:
            LogUnavailable: It cannot be read, or an append failed within the last seconds.
        """


class Owners(Protocol):
    """The API keys that made the jobs, agents, files and batches."""

    def ownership_of(self, stream: StreamName) -> Ownership | None:
        """Return the ownership of a stream's subject.

        ``None``: there is no such job or agent, or no such file or batch with an owner.

        Raises:
            LogUnavailable: The log cannot be read.
        """


class PayloadStore(Protocol):
    """Texts by their digest."""

    def get(self, digest: Digest) -> bytes:
        """Return the payload.

        Raises:
            PayloadMissing: It was erased or never stored.
            PayloadDamaged: Its content does not have this digest.
        """
