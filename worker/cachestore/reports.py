"""The engine's reports about contexts; the worker appends events from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from domain.kv.hashing import BlockHash
from worker.cachestore.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStarted:
    """A sequence joined the batch.

    Attributes:
        label: The job id.
        fingerprint: Block fingerprint.
        names: Hashes of the whole blocks of its prompt.
        block_tokens: Tokens in each block.
        restored_tokens: Tokens that were restored instead of computed.
        disk_tokens: Restored tokens that were read from the disk.
        diverged_at: Index of the first token that contradicts a stored context with the same
            beginning; ``None`` if there is none.
        took_ms: Milliseconds for reading and restoring.
    """

    label: str
    fingerprint: str
    names: tuple[BlockHash, ...]
    block_tokens: int
    prompt_tokens: int
    restored_tokens: int
    disk_tokens: int
    diverged_at: int | None
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSaved:
    """A sequence left the batch, and the writes of its blocks have ended.

    Attributes:
        label: The job id.
        manifest: Its blocks on disk.
        tokens: Tokens that these blocks hold.
    """

    label: str
    manifest: Manifest
    tokens: int


ContextReport: TypeAlias = ContextStarted | ContextSaved
OnContext: TypeAlias = Callable[[ContextReport], None]


def ignore(report: ContextReport) -> None:
    """Drop the report."""
    del report
