"""What a sequence starts from: tokens in memory and on the disk, and perhaps a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from domain.kv.checkpoints import CacheCheckpoint, CheckpointSite, checkpoint_fingerprint, places
from domain.kv.contexts import Context, KnownPrefix, Piece
from domain.kv.hashing import BlockHash, pack_ids
from domain.kv.pool import BlockPool
from domain.kv.relief import Holder
from domain.kv.spec import ModelCacheSpec
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.kv.context_caches import ContextStore
from worker.engine.mlx.kv.probe import ContextSizes

#: Restoring fewer tokens than this takes longer than computing them.
RESTORED_TOKENS_MIN = 16
#: Share of a parked context, in parts, that its next sequence may leave behind. A context of which
#: more is left is copied instead, because another agent will continue it.
LEFT_PARTS = 4
#: Tokens that it may leave behind although the disk does not have them: the end of an answer.
LEFT_UNSAVED_TOKENS = 16


#: Tokens by which the next step may lengthen a row: the passes in flight, and drafted tokens.
STEP_TOKENS_MAX = 12
#: Seconds without a running sequence after which contexts that the disk does not take are freed.
BLOCKED_S_MAX = 10.0


def row_slots(sizes: ContextSizes, tokens: int) -> int:
    """Return the room, in whole blocks, of a row of ``tokens`` that runs its next step."""
    return sizes.blocks_for(tokens + STEP_TOKENS_MAX) * sizes.block_tokens


@dataclass(frozen=True, slots=True)
class DiskEnd:
    """A checkpoint on the disk.

    Attributes:
        start: Tokens before the ones that its name covers.
        position: Tokens before the checkpoint.
    """

    name: BlockHash
    start: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """Where the beginning of a prompt comes from.

    Attributes:
        names: Hashes of its whole blocks that memory or disk have, at least those in ``tokens``.
        tokens: Tokens that are restored.
        pieces: Where the full-attention layers of these tokens are.
        adopted: The parked context that runs again; its tokens are the first piece.
        end: What windows and states are restored from: a checkpoint, or a parked context that
            ends there. ``None`` where the model has none, where they start empty, or where the
            adopted context still has them.
        tail_on_disk: Whether the disk may have tokens after the pieces.
        diverged_at: First token that differs from all contexts in memory.
    """

    names: tuple[BlockHash, ...] = ()
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    adopted: Context | None = None
    end: CacheCheckpoint | DiskEnd | Context | None = None
    tail_on_disk: bool = False
    diverged_at: int | None = None

    @property
    def sources(self) -> tuple[Holder, ...]:
        """The contexts and the checkpoint in memory that are copied from."""
        found: dict[Holder, None] = {
            piece.context: None for piece in self.pieces if piece.context is not None
        }
        if self.end is not None and not isinstance(self.end, DiskEnd):
            found[self.end] = None
        return tuple(one for one in found if one is not self.adopted)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The sources and the adopted context."""
        return self.sources if self.adopted is None else (*self.sources, self.adopted)


class StartPlanner:
    """Plans how sequences start."""

    def __init__(
        self,
        store: ContextStore,
        fingerprint: str,
        tier: DiskTier | None,
        now_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._pool = store.pool
        self._spec: ModelCacheSpec = store.pool.spec
        self._fingerprint = fingerprint
        self._checkpoint_fingerprint = checkpoint_fingerprint(fingerprint)
        self._tier = tier
        self._now_s = now_s
        self._blocked_since_s: float | None = None

    def known_tokens(self, token_ids: Sequence[int]) -> tuple[int, int, int]:
        """Return how many tokens of a prompt memory has, can be restored, and are known at all.

        From any thread. More are known than can be restored where windows or states can go on only
        from an earlier checkpoint. A tail on the disk counts only if all of its tokens agree.
        """
        # Otherwise the engine thread could free a context between two lookups.
        return self._pool.guarded(lambda: self._known_tokens(token_ids))

    def _known_tokens(self, token_ids: Sequence[int]) -> tuple[int, int, int]:
        known = self._pool.find(token_ids, self._on_disk)
        in_memory = self._pool.find(token_ids).tokens
        if self._spec.has_ends:
            tokens, _ = self._last_end(token_ids, known)
            return min(in_memory, tokens), tokens, max(known.tokens, tokens)
        tokens = known.tokens + self._whole_tail(token_ids, known)
        return in_memory, tokens, tokens

    def plan(self, token_ids: Sequence[int], *, adopts: bool) -> StartPlan:
        """Return where the beginning of a prompt comes from.

        Args:
            token_ids: The prompt without its last token, which is always computed.
            adopts: Whether a parked context may be taken over although much of it is left.
        """
        diverged_at = self._pool.diverged_at(token_ids)
        known = self._pool.find(token_ids, self._on_disk)
        tokens, end, tail_on_disk = known.tokens, None, False
        if self._spec.has_ends:
            tokens, end = self._last_end(token_ids, known)
        else:
            tail_on_disk = self._has_tail(token_ids, known)
        if tokens < RESTORED_TOKENS_MIN and not tail_on_disk:
            return StartPlan(diverged_at=diverged_at)
        pieces = known.cut(min(tokens, known.tokens))
        adopted = self._adopted(pieces, adopts=adopts)
        return StartPlan(
            names=known.names,
            tokens=tokens,
            pieces=pieces,
            adopted=adopted,
            end=None if end is adopted else end,
            tail_on_disk=tail_on_disk,
            diverged_at=diverged_at,
        )

    def admit(
        self, tokens: Sequence[int], *, running: int, is_cold: bool = False
    ) -> StartPlan | None:
        """Plan a start for which there is memory, and pin what it uses."""
        growth_bytes = self._spec.full_bytes(self._spec.block_tokens) * running
        needed_bytes = self._spec.live_bytes(row_slots(self._spec, len(tokens))) + growth_bytes
        alone = running == 0
        if not self._pool.could_take(needed_bytes, alone=alone):
            return None  # before the prompt is hashed: a refused one is tried again soon
        for adopts in () if is_cold else (False, True):
            plan = self.plan(tokens[:-1], adopts=adopts)
            self._pool.share(*plan.holders)
            held_bytes = 0 if plan.adopted is None else plan.adopted.size_bytes
            if self._pool.make_room(needed_bytes - held_bytes, alone=alone):
                self._blocked_since_s = None
                return plan
            self._pool.release(*plan.holders)
        # Without its sources in memory: the disk has them.
        if not self._pool.make_room(needed_bytes, lose=self._is_blocked(running), alone=alone):
            return None
        self._blocked_since_s = None
        plan = StartPlan() if is_cold else self.plan(tokens[:-1], adopts=True)
        self._pool.share(*plan.holders)
        return plan

    def _is_blocked(self, running: int) -> bool:
        """Return whether nothing has run for long because contexts are not saved."""
        if running:
            self._blocked_since_s = None
            return False
        if self._blocked_since_s is None:
            self._blocked_since_s = self._now_s()
        return self._now_s() - self._blocked_since_s > BLOCKED_S_MAX

    def _adopted(self, pieces: Sequence[Piece], *, adopts: bool) -> Context | None:
        """Return the parked context that begins a plan and can run again, if there is one."""
        if not pieces or pieces[0].context is None:
            return None
        context, tokens = pieces[0].context, pieces[0].stop
        if not context.is_idle or context.start:
            return None
        left = len(context.token_ids) - tokens
        if left > LEFT_UNSAVED_TOKENS and not (context.is_saved or self._pool.may_lose()):
            return None
        return context if adopts or left * LEFT_PARTS <= len(context.token_ids) else None

    def _on_disk(self, name: BlockHash) -> bool:
        return self._tier is not None and self._tier.contains(name)

    def _has_tail(self, wanted: Sequence[int], known: KnownPrefix) -> bool:
        """Return whether the disk may have more tokens than memory after the last whole block."""
        if self._tier is None or known.tokens == len(wanted):
            return False
        parent = known.names[-1] if known.names else None
        children = self._tier.children(parent, self._fingerprint)
        return any(child.hash not in self._pool for child in children)

    def _last_end(
        self, wanted: Sequence[int], known: KnownPrefix
    ) -> tuple[int, CacheCheckpoint | DiskEnd | Context | None]:
        """Return the last position from which windows and states can go on, and their source."""
        last = known.pieces[-1].context if known.pieces else None
        if last is not None and (
            last.is_running
            or not self._store.caches(last).can_end_at(known.tokens, len(last.token_ids))
        ):
            last = None
        size = self._spec.block_tokens
        stop = min(len(wanted), len(known.names) * size + size)
        # The disk is not asked for a few tokens more than a context in memory has.
        least = known.tokens + (1 if last is None else RESTORED_TOKENS_MIN)
        if stop >= least:
            # Beyond the known tokens only the disk can continue: its checkpoints have the tail.
            start = len(known.names) * size
            beyond = CheckpointSite(
                known.names[-1] if known.names else None, start, wanted[start:stop]
            )
            for position, name in self.disk_ends(beyond):
                if least <= position < start + size:
                    return position, DiskEnd(name, start, position)
        if last is not None:
            return known.tokens, last
        return self.end_before(wanted, known.names, known.tokens)

    def disk_ends(self, place: CheckpointSite) -> Iterator[tuple[int, BlockHash]]:
        """Yield the checkpoints of a place that the disk has, the last one first."""
        if self._tier is None:
            return
        children = self._tier.children(place.parent, self._checkpoint_fingerprint)
        names = {child.hash for child in children}
        lengths = [child.tokens for child in children]
        for position, name in self._pool.checkpoints.names_at(place, lengths):
            if name in names:
                yield position, name

    def parts_on_disk(self, names: Sequence[BlockHash], position: int) -> bool:
        """Return whether the disk has another continuation at a position of a prompt.

        Args:
            names: Hashes of the prompt's whole blocks.
            position: The first token that may differ.
        """
        if self._tier is None:
            return False
        block = position // self._spec.block_tokens
        children = self._tier.children(names[block - 1] if block else None, self._fingerprint)
        own = names[block] if block < len(names) else None
        return any(child.hash != own for child in children)

    def checkpoints_after(self, names: Sequence[BlockHash]) -> list[BlockHash]:
        """Return the checkpoints on the disk that follow these blocks; from any thread."""
        if self._tier is None:
            return []
        fingerprint = self._checkpoint_fingerprint
        return [one.hash for name in names for one in self._tier.children(name, fingerprint)]

    def ends_on_path(
        self, token_ids: Sequence[int], names: Sequence[BlockHash], stop: int
    ) -> set[tuple[int, BlockHash]]:
        """Return position and name of the checkpoints in the first ``stop`` tokens of a prompt."""
        found = set()
        for place in places(token_ids, names, stop, self._spec.block_tokens):
            found |= set(self.disk_ends(place))
            in_memory = self._pool.checkpoints.at(place)
            if in_memory is not None:
                found.add((in_memory.position, in_memory.name))
        return found

    def end_before(
        self, token_ids: Sequence[int], names: Sequence[BlockHash], stop: int
    ) -> tuple[int, CacheCheckpoint | DiskEnd | None]:
        """Return the last checkpoint in the first ``stop`` tokens, and its position."""
        for place in places(token_ids, names, stop, self._spec.block_tokens):
            in_memory = self._pool.checkpoints.at(place)
            stored = (DiskEnd(name, place.start, at) for at, name in self.disk_ends(place))
            on_disk = next(stored, None)
            if in_memory is not None and (
                on_disk is None or in_memory.position >= on_disk.position
            ):
                return in_memory.position, in_memory
            if on_disk is not None:
                return on_disk.position, on_disk
        return 0, None

    def _whole_tail(self, token_ids: Sequence[int], known: KnownPrefix) -> int:
        """Return the tokens of the longest stored tail that the prompt has too."""
        size = self._spec.block_tokens
        if self._tier is None or known.tokens % size:
            return 0
        parent = known.names[-1] if known.names else None
        rest = token_ids[known.tokens : known.tokens + size]
        lengths = {child.tokens for child in self._tier.children(parent, self._fingerprint)}
        for length in sorted(lengths, reverse=True):
            if length <= len(rest) and self._tier.contains(
                self._pool.hasher.of_packed(parent, pack_ids(rest[:length]))
            ):
                return length
        return 0


def name_at(
    pool: BlockPool, token_ids: Sequence[int], names: Sequence[BlockHash], end: int
) -> BlockHash:
    """Return the name of the first ``end`` tokens of a prompt, as of a checkpoint there."""
    size = pool.spec.block_tokens
    block = (end - 1) // size
    parent = names[block - 1] if block else None
    return pool.checkpoints.name_of(parent, token_ids[block * size : end])


class PendingPrefixes:
    """Names of prefixes that are being computed or restored. Belongs to the engine thread.

    Of a model with full-attention layers alone these are blocks, and the end of the prompt. Of
    other models they are the checkpoints to come.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._size = pool.spec.block_tokens
        #: By name: the number of tokens up to its end.
        self._pending: dict[BlockHash, int] = {}
        #: By name: how many sequences compute or restore it.
        self._sequences: Counter[BlockHash] = Counter()
        #: Waiting prompts, each with the name that it waits for, by ``id`` of their tokens.
        self._waiting: dict[int, tuple[Sequence[int], BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self,
        token_ids: Sequence[int],
        names: Sequence[BlockHash],
        restored: int,
        pauses: Collection[int],
    ) -> dict[BlockHash, int]:
        """Add the prefixes that a prompt computes or restores, and return them.

        Of two sequences with the same prefix, the other one goes on where one is cancelled.

        Args:
            token_ids: The prompt without its last token.
            names: Hashes of its whole blocks.
            restored: Tokens that its row holds already.
            pauses: Positions at which checkpoints are made.
        """
        ends = pauses if self._pool.spec.has_ends else (len(token_ids),)
        found: dict[BlockHash, int] = {}
        if not self._pool.spec.has_ends:
            found = {name: (at + 1) * self._size for at, name in enumerate(names)}
        found |= {name_at(self._pool, token_ids, names, end): end for end in ends if end > restored}
        new = {
            name: end for name, end in found.items() if end > restored and name not in self._pool
        }
        self._pending |= new
        self._sequences.update(new.keys())
        return new

    def remove(self, names: Collection[BlockHash]) -> None:
        """Remove prefixes that one sequence of ``add`` holds now, or will not."""
        for name in names:
            self._sequences[name] -= 1
            if self._sequences[name] <= 0:
                del self._sequences[name]
                self._pending.pop(name, None)

    def must_wait(self, token_ids: Sequence[int]) -> bool:
        """Return whether more of a prompt is pending than memory has.

        A call with the same object as before is cheap until the answer may have changed.
        """
        if not self._pending:
            self._waiting.clear()
            return False
        tokens, awaited = self._waiting.get(id(token_ids), (None, None))
        if tokens is token_ids and awaited in self._pending:
            return True
        self._waiting.pop(id(token_ids), None)
        for name in self._prefixes(token_ids[:-1]):
            if name in self._pending:
                self._waiting[id(token_ids)] = token_ids, name
                return True
        return False

    def clear(self) -> None:
        """Forget all prefixes and prompts."""
        self._pending.clear()
        self._sequences.clear()
        self._waiting.clear()

    def _prefixes(self, wanted: Sequence[int]) -> Iterator[BlockHash]:
        """Yield the names of a prompt that may be pending."""
        if self._pool.spec.has_ends:
            names = list(self._pool.hasher.chain(pack_ids(wanted), self._size))
            for end in sorted(set(self._pending.values())):
                if end <= len(wanted):
                    yield name_at(self._pool, wanted, names, end)
            return
        names = []
        for name in self._pool.hasher.chain(pack_ids(wanted), self._size):
            yield name
            names.append(name)
            if name not in self._pending and name not in self._pool:
                return
        if wanted:
            yield name_at(self._pool, wanted, names, len(wanted))
