"""What the engine tells of contexts while it works; the worker makes events of the log from it."""

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
        label: Whose it is, as its admission says.
        fingerprint: Whose blocks.
        names: Names of the whole blocks of its prompt.
        block_tokens: Tokens in each of them.
        prompt_tokens: Length of the prompt.
        restored_tokens: How much of it was not computed.
        disk_tokens: How much of that came from the disk.
        diverged_at: Where the prompt contradicts what is known, ``None`` if it does not.
        took_ms: How long reading and putting together took.
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
class ContextKept:
    """A sequence left the batch, and what it left had its chance to reach the disk.

    Attributes:
        label: Whose it was.
        manifest: Its blocks that are on disk.
        tokens: Length of the context that they hold.
    """

    label: str
    manifest: Manifest
    tokens: int


ContextReport: TypeAlias = ContextStarted | ContextKept
OnContext: TypeAlias = Callable[[ContextReport], None]


def ignore(report: ContextReport) -> None:
    """Tell nobody."""
    del report
