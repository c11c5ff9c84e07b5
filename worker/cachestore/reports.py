"""What the engine reports about contexts: their blocks on disk, and misses with their causes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from domain.events.cache import AgentCacheMissed, AgentCacheSaved
from domain.kv.hashing import BlockHash
from domain.values import JobId
from worker.cachestore.writer import WriteBehind


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The blocks of one context.

    Attributes:
        blocks: Hashes of the whole blocks, in order.
        tail: Hash of the last, partial block, ``None`` if there is none.
        checkpoints: Names of the checkpoints that were made on the way. They are files of the same
            store, and hold text too: who erases the context deletes them.
    """

    fingerprint: str
    blocks: tuple[BlockHash, ...]
    tail: BlockHash | None = None
    checkpoints: tuple[BlockHash, ...] = ()

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """All names: the blocks in order, the tail, the checkpoints."""
        tail = () if self.tail is None else (self.tail,)
        return (*self.blocks, *tail, *self.checkpoints)

    def cut(self, stored: Collection[BlockHash]) -> Manifest:
        """Return the beginning that can be restored from the blocks in ``stored``.

        All stored checkpoints stay named, also those behind a block that is missing.
        """
        count = next(
            (at for at, each in enumerate(self.blocks) if each not in stored), len(self.blocks)
        )
        whole = count == len(self.blocks)
        tail = self.tail if whole and self.tail in stored else None
        checkpoints = tuple(each for each in self.checkpoints if each in stored)
        return replace(self, blocks=self.blocks[:count], tail=tail, checkpoints=checkpoints)


def sealed(writer: WriteBehind, manifest: Manifest) -> Future[Manifest]:
    """Return the manifest cut to the blocks on disk, once their writes have ended.

    Only a sealed manifest may be appended to the log.
    """
    result: Future[Manifest] = Future()

    def finish(stored: Future[frozenset[BlockHash]]) -> None:
        result.set_result(manifest.cut(stored.result()))

    writer.when_written(manifest.hashes).add_done_callback(finish)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStarted:
    """A sequence joined the batch.

    Attributes:
        names: Hashes of the whole blocks of its prompt.
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
    """A sequence left the batch, and the writes of its blocks have ended."""

    label: str
    manifest: Manifest
    tokens: int


ContextReport: TypeAlias = ContextStarted | ContextSaved
OnContext: TypeAlias = Callable[[ContextReport], None]


#: Fewer tokens are no miss: chat templates often render the end of a turn differently in the next.
MISSED_TOKENS_MIN = 16


def miss_of(started: ContextStarted, saved: AgentCacheSaved | None) -> AgentCacheMissed | None:
    """Return what a job missed of its agent's last saved context.

    ``None`` if the agent has no saved context, or the prompt ends inside it.
    """
    if saved is None:
        return None
    missed = partial(AgentCacheMissed, job=JobId(started.label))
    if saved.fingerprint != started.fingerprint:
        return missed(reason="model_changed", at_token=0, missed_tokens=saved.tokens)
    size = started.block_tokens
    common = _common_blocks(started, saved)
    diverges = common < min(len(started.names), len(saved.blocks))
    diverged_at = started.diverged_at
    if diverged_at is not None and common * size <= diverged_at < (common + 1) * size:
        first_difference: int | None = diverged_at
    else:
        first_difference = common * size if diverges else None
    shared_tokens = min(saved.tokens, started.prompt_tokens)
    if first_difference is not None and first_difference < shared_tokens:
        # Blocks before the difference may be missing too; the earlier loss is reported.
        shared_tokens = first_difference
    if common * size - started.restored_tokens >= MISSED_TOKENS_MIN:
        at_token = started.restored_tokens
        return missed(reason="gone", at_token=at_token, missed_tokens=shared_tokens - at_token)
    if first_difference is not None and saved.tokens - first_difference >= MISSED_TOKENS_MIN:
        return missed(
            reason="diverged",
            at_token=first_difference,
            missed_tokens=saved.tokens - first_difference,
        )
    return None


def _common_blocks(started: ContextStarted, saved: AgentCacheSaved) -> int:
    """Return how many first blocks are the same."""
    count = 0
    for name, other in zip(started.names, saved.blocks, strict=False):
        if name.hex() != other:
            break
        count += 1
    return count
