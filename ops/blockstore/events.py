"""Events of the block store, which the worker records in the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRejected:
    """A file failed a check; it is deleted and the block will be computed again."""

    hash: BlockHash
    reason: RejectReason
    detail: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksEvicted:
    """The least recently used blocks were deleted to make room."""

    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistencePaused:
    """The disk refused a block; blocks stay in memory only, and generation continues.

    Attributes:
        error: Name of the error number, e.g. ``ENOSPC``.
        message: The system's error message.
        retry_s: Seconds until the next block is tried.
    """

    error: str
    message: str
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceResumed:
    """The disk takes blocks again.

    Attributes:
        paused_s: Seconds since the pause began.
        dropped: Blocks that were not stored during the pause.
    """

    paused_s: float
    dropped: int


StoreEvent: TypeAlias = BlockRejected | BlocksEvicted | PersistencePaused | PersistenceResumed
OnStoreEvent: TypeAlias = Callable[[StoreEvent], None]


def ignore(event: StoreEvent) -> None:
    """Do nothing."""
    del event
