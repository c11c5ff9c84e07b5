"""Whether a block is accepted for writing, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from ops.blockstore.blocks import PutOutcome


class WriteState(StrEnum):
    """Whether a block would be accepted now."""

    #: It would.
    READY = "ready"
    #: Too many blocks or bytes are in flight; that passes within a write.
    BUSY = "busy"
    #: The disk failed, in a write or in the scan; it is tried again after a pause.
    PAUSED = "paused"
    #: The store had no room and could not evict; it is tried again after a pause.
    FULL = "full"
    #: The writer is closing, or the first scan of the store has not ended yet.
    OFF = "off"


class WriteOutcome(StrEnum):
    """The result of writing a block."""

    #: It is on disk, synced and under its name; maybe it was before.
    STORED = "stored"
    #: The store is full of blocks that may not be evicted.
    NO_ROOM = "no_room"
    #: The disk failed.
    FAILED = "failed"
    #: It was deleted before it was written.
    FORGOTTEN = "forgotten"


_OUTCOMES: Final[Mapping[PutOutcome, WriteOutcome]] = MappingProxyType(
    {
        PutOutcome.STORED: WriteOutcome.STORED,
        PutOutcome.PRESENT: WriteOutcome.STORED,
        PutOutcome.NO_ROOM: WriteOutcome.NO_ROOM,
    }
)


def outcome_of(stored: PutOutcome) -> WriteOutcome:
    """Return the outcome of a write that the store completed."""
    return _OUTCOMES[stored]
