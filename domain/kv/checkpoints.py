"""Checkpoints: what sliding windows and recurrent states remember at one position of a context.

Full-attention layers can be cut at any token. Windows and states can be restored only where a
checkpoint was made. Its name is the hash of the tokens between the last whole block before its
position and the position, under a fingerprint of its own. A checkpoint at a block boundary has the
tokens of the whole block that ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from domain.kv.contexts import Context
from domain.kv.hashing import ID_BYTES, BlockHash, BlockHasher, pack_ids


class CheckpointKind(StrEnum):
    """Why a checkpoint was made."""

    #: The end of tools and system prompt, where conversations part.
    SYSTEM = "system"
    #: The first token that differs from another context.
    FORK = "fork"
    #: The beginning of the last message, which clients rewrite.
    MESSAGE = "message"
    #: Where the next prompt is expected to part from this one.
    PARTING = "parting"
    #: The last token of the prompt but one.
    PROMPT = "prompt"
    #: The end of the answer.
    ANSWER = "answer"
    #: On the way through a long prompt or answer; replaced by the next one.
    PROGRESS = "progress"


@dataclass(slots=True, eq=False, kw_only=True)
class CacheCheckpoint:
    """A checkpoint in memory. ``BlockPool`` writes its state.

    Attributes:
        parent: Hash of the block before its tokens, ``None`` at the beginning of the context.
        token_ids: The tokens between that block and the position, one to a whole block.
        position: Number of tokens before it.
        kind: Why it was made.
        size_bytes: Size of its arrays.
        users: Copies and writes in progress.
        is_saved: Whether the disk has it, or has it in its write queue.
        used: Number of its last use.
        contexts: Contexts in memory that it was made for.
        busy: How many of them are not idle.
    """

    name: BlockHash
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    position: int
    kind: CheckpointKind
    size_bytes: int = 0
    users: int = 0
    is_saved: bool = False
    used: int = 0
    contexts: set[Context] = field(default_factory=set)
    busy: int = 0


def checkpoint_fingerprint(fingerprint: str) -> str:
    """Return the fingerprint under which the checkpoints of a model are stored.

    Args:
        fingerprint: Block fingerprint of the model.
    """
    return "sha256:" + sha256(f"{fingerprint} checkpoint".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CheckpointSite:
    """A position of a prompt at which a checkpoint may exist.

    Attributes:
        parent: Name of the last whole block before it, ``None`` at the beginning.
        start: Number of tokens up to that block's end.
        token_ids: The prompt's next tokens, up to a whole block.
    """

    parent: BlockHash | None
    start: int
    token_ids: Sequence[int]


def places(
    token_ids: Sequence[int], names: Sequence[BlockHash], stop: int, block_tokens: int
) -> Iterator[CheckpointSite]:
    """Yield the places of checkpoints in the first ``stop`` tokens, the last one first.

    Args:
        token_ids: The prompt.
        names: Hashes of its first whole blocks, at least those before ``stop``.
        stop: Number of tokens to search.
    """
    for block in range((stop - 1) // block_tokens, -1, -1):
        start = block * block_tokens
        yield CheckpointSite(
            parent=names[block - 1] if block else None,
            start=start,
            token_ids=token_ids[start : min(stop, start + block_tokens)],
        )


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """How a checkpoint is named.

    Attributes:
        parent: Hash of the block before its tokens, ``None`` at the beginning of the context.
        start: Tokens up to that block's end.
        token_ids: The tokens between that block and the position, one to a whole block.
    """

    name: BlockHash
    parent: BlockHash | None
    start: int
    token_ids: tuple[int, ...]


class CheckpointIndex:
    """The checkpoints in memory. Not thread-safe.

    Args:
        hasher: Names checkpoints; made with ``checkpoint_fingerprint``.
    """

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self._by_name: dict[BlockHash, CacheCheckpoint] = {}
        self._by_parent: dict[BlockHash | None, list[CacheCheckpoint]] = {}

    def __iter__(self) -> Iterator[CacheCheckpoint]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: BlockHash) -> CacheCheckpoint | None:
        """Return the checkpoint of that name."""
        return self._by_name.get(name)

    def name_of(self, parent: BlockHash | None, token_ids: Sequence[int]) -> BlockHash:
        """Return the name of the checkpoint after ``token_ids``."""
        return self._hasher.of_packed(parent, pack_ids(token_ids))

    def name_at(self, context: Context, position: int, block_tokens: int) -> CheckpointName:
        """Return the name of the checkpoint of a context at a position."""
        block = (position - 1) // block_tokens
        start, parent = block * block_tokens, context.names[block - 1] if block else None
        token_ids = self._hasher.covered(context.token_ids[start:position])
        return CheckpointName(self.name_of(parent, token_ids), parent, start, token_ids)

    def add(self, checkpoint: CacheCheckpoint) -> None:
        """Add a checkpoint whose name is not in the index."""
        assert checkpoint.name not in self._by_name, "a checkpoint is added once"
        self._by_name[checkpoint.name] = checkpoint
        self._by_parent.setdefault(checkpoint.parent, []).append(checkpoint)

    def remove(self, checkpoint: CacheCheckpoint) -> None:
        """Remove a checkpoint; an unknown one is ignored."""
        if self._by_name.get(checkpoint.name) is not checkpoint:
            return
        del self._by_name[checkpoint.name]
        siblings = self._by_parent[checkpoint.parent]
        siblings.remove(checkpoint)
        if not siblings:
            del self._by_parent[checkpoint.parent]

    def at(self, place: CheckpointSite) -> CacheCheckpoint | None:
        """Return the last checkpoint of a place."""
        fitting = (
            one
            for one in self._by_parent.get(place.parent, ())
            if self._hasher.covered(place.token_ids[: len(one.token_ids)]) == one.token_ids
        )
        return max(fitting, key=lambda one: one.position, default=None)

    def names_at(
        self, place: CheckpointSite, lengths: Sequence[int]
    ) -> Iterator[tuple[int, BlockHash]]:
        """Yield position and name of the possible checkpoints of a place, the last one first.

        Args:
            lengths: Numbers of tokens that checkpoints after the place's parent have.
        """
        packed = pack_ids(place.token_ids)
        for length in sorted(set(lengths), reverse=True):
            if length * ID_BYTES <= len(packed):
                name = self._hasher.of_packed(place.parent, packed[: length * ID_BYTES])
                yield place.start + length, name
