"""Checkpoints: what sliding windows and recurrent states remember at one position of a context.

Full-attention layers can be cut at any token. Windows and states can be restored only where a
checkpoint was made. Its name is the hash of the tokens between the last whole block before its
position and the position, under a fingerprint of its own. A checkpoint at a block boundary has the
tokens of the whole block that ends there.

Many clients rewrite the end of their last message: a reminder stands there for one turn, and the
next prompt parts from this one where it begins. Seen from the end of the prompt, that is nearly the
same place in each turn of a client. So the distances of the last partings (``Partings``) show where
to make a checkpoint.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from domain.kv.contexts import Context
from domain.kv.hashing import ID_BYTES, BlockHash, BlockHasher, common_tokens, pack_ids

#: Tokens at the end of a prompt that are compared with the next one.
COMPARED_TOKENS = 8192
#: Prompts that wait for the next one, and clients whose partings are remembered.
PROMPTS_MAX = 256
CLIENTS_MAX = 64
#: Partings of a client that are remembered.
PARTINGS_MAX = 8
#: Prompts of a client without a parting after which none is expected.
UNPARTED_MAX = 4


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
    """Return the fingerprint under which the checkpoints of a model are stored."""
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
        names: Hashes of its first whole blocks, at least those before ``stop``.
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


@dataclass(slots=True, eq=False, kw_only=True)
class PromptEnd:
    """The end of a prompt, with which the next one is compared.

    Attributes:
        parent: Name of the block before ``tokens``.
        start: Number of tokens before ``tokens``.
        tokens: The last tokens of the prompt.
        last_message: Position at which its last message begins; 0 if that is not known.
        client: Name of its tools and system prompt.
        agent: The agent of its job; ``None`` if it has none.
        is_first: Whether no prompt before it is known.
        is_continued: Whether a prompt has begun with all of it.
        rewrites: The prompt whose last message this one has otherwise, and the first other token.
        ends: Names of the checkpoints that its turn has left, by position.
    """

    parent: BlockHash | None
    start: int
    tokens: array[int]
    last_message: int
    client: BlockHash | None
    agent: str | None = None
    is_first: bool = True
    is_continued: bool = False
    rewrites: tuple[PromptEnd, int] | None = None
    ends: dict[int, BlockHash] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """Length of the prompt."""
        return self.start + len(self.tokens)

    def abandoned(self) -> list[BlockHash]:
        """Return the checkpoints behind the parting that no prompt is expected to start from.

        A fork parts where a rewritten message does, and both agents go on: nothing is abandoned
        but by the same agent. The ends of a conversation's first turn stay for one turn more: a
        prompt that has much of its message may be that of another conversation.
        """
        found: list[BlockHash] = []
        before = self.rewrites
        if before is not None and not before[0].is_first and self._is_of(before[0]):
            found += before[0].unused_after(before[1])
        earlier = None if before is None else before[0].rewrites
        if earlier is not None and earlier[0].is_first and self._is_of(earlier[0]):
            found += earlier[0].unused_after(earlier[1])
        return found

    def _is_of(self, other: PromptEnd) -> bool:
        return self.agent is not None and self.agent == other.agent

    def unused_after(self, position: int) -> list[BlockHash]:
        """Return the checkpoints after ``position`` unless a prompt has gone on from them."""
        if self.is_continued:
            return []
        return [name for at, name in self.ends.items() if at > position]


class Partings:
    """The ends of the last prompts, and where the prompts after them parted.

    Belongs to one thread, but for ``without_prompts``.

    Args:
        block_tokens: The distance of the positions that have a name.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._prompts: OrderedDict[PromptEnd, None] = OrderedDict()
        self._by_parent: dict[BlockHash | None, list[PromptEnd]] = {}
        #: Of each client: tokens between partings and the ends of the prompts; 0 for none.
        self._distances: OrderedDict[BlockHash | None, deque[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def add(
        self,
        prompt: Sequence[int],
        names: Sequence[BlockHash],
        *,
        last_message: int = 0,
        client: BlockHash | None = None,
        agent: str | None = None,
    ) -> PromptEnd:
        """Compare a prompt with those before it, and remember it for the next one.

        Args:
            names: Hashes of its first whole blocks, all but perhaps the last one.

        Returns:
            Its end; of a repeated prompt that of the first time.
        """
        before, common = self._before(prompt, names)
        if before is not None and common == before.stop == len(prompt):
            self._prompts.move_to_end(before)
            return before
        block = min(max(0, len(prompt) - COMPARED_TOKENS) // self._size, len(names))
        end = PromptEnd(
            parent=names[block - 1] if block else None,
            start=block * self._size,
            tokens=array("I", prompt[block * self._size :]),
            last_message=last_message,
            client=client,
            agent=agent,
        )
        if before is not None:
            self._compare(before, end, common)
        self._prompts[end] = None
        self._by_parent.setdefault(end.parent, []).append(end)
        if len(self._prompts) > PROMPTS_MAX:
            self._remove(next(iter(self._prompts)))
        return end

    def without_prompts(self) -> Partings:
        """Return the same distances without the prompts, some of which are erased."""
        emptied = Partings(self._size)
        emptied._distances = self._distances
        return emptied

    def distance(self, client: BlockHash | None) -> int | None:
        """Return how many tokens before its end the next prompt will part from one of a client.

        Returns:
            0 if it will not, ``None`` where too little is known.
        """
        seen = self._distances.get(client, ())
        if any(seen):
            return max(seen)
        return None if len(seen) < UNPARTED_MAX else 0

    def _before(
        self, prompt: Sequence[int], names: Sequence[BlockHash]
    ) -> tuple[PromptEnd | None, int]:
        """Return the prompt that shares most tokens, and how many."""
        best: PromptEnd | None = None
        most = 0
        for parent in (*reversed(names), None):
            for one in self._by_parent.get(parent, ()):
                if one.start + len(one.tokens) <= most:
                    continue
                common = one.start + common_tokens(one.tokens, prompt[one.start : one.stop])
                if common > most:
                    best, most = one, common
        return best, most

    def _compare(self, before: PromptEnd, end: PromptEnd, common: int) -> None:
        distance = before.stop - common
        if not distance:
            before.is_continued, end.is_first = True, False
            self._remember(end.client, 0)
            return
        is_late = 2 * distance <= before.stop - before.last_message
        if common < before.last_message or (before.is_first and not is_late):
            return  # an earlier message differs, or it may be another conversation
        end.is_first = False
        end.rewrites = before, common
        if before.rewrites is not None and not before.rewrites[0].is_first:
            before.rewrites = None  # nothing of it is left
        if is_late:
            self._remember(end.client, distance)

    def _remember(self, client: BlockHash | None, distance: int) -> None:
        self._distances.setdefault(client, deque(maxlen=PARTINGS_MAX)).append(distance)
        self._distances.move_to_end(client)
        if len(self._distances) > CLIENTS_MAX:
            self._distances.popitem(last=False)

    def _remove(self, end: PromptEnd) -> None:
        del self._prompts[end]
        siblings = self._by_parent[end.parent]
        siblings.remove(end)
        if not siblings:
            del self._by_parent[end.parent]
