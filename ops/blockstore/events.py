"""What the store tells while it works; the worker makes events of the log from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRejected:
    """A file was not what its name promised; it is gone and the block will be computed again."""

    hash: BlockHash
    reason: RejectReason
    detail: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksEvicted:
    """The least recently used blocks made room for others."""

    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistencePaused:
    """The disk took no more; blocks are kept in memory only, and generation goes on.

    Attributes:
        error: Name of the error number, e.g. ``ENOSPC``.
        message: What the system said.
        retry_s: Seconds until the next block is tried.
    """

    error: str
    message: str
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceResumed:
    """The disk takes blocks again.

    Attributes:
        paused_s: Seconds since it stopped.
        dropped: Blocks that were not stored in between.
    """

    paused_s: float
    dropped: int


StoreEvent: TypeAlias = BlockRejected | BlocksEvicted | PersistencePaused | PersistenceResumed
OnStoreEvent: TypeAlias = Callable[[StoreEvent], None]


def ignore(event: StoreEvent) -> None:
    """Tell nobody."""
    del event
