"""The pool that production uses, beside arrays that are numbers, in any order of moves."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind
from domain.kv.contexts import Context
from domain.kv.hashing import BlockHasher, pack_ids
from domain.kv.pool import BlockPool
from domain.kv.relief import (
    DropCheckpoint,
    Evict,
    Holder,
    TrimEnd,
    TrimStart,
)
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from tests.support.builders.number_arrays import (
    BLOCK_TOKENS,
    NumbersForArrays,
    Rows,
    freed_by,
    scanned,
)

SIZE = BLOCK_TOKENS
STEPS_MIN = 10_000
HASHER = BlockHasher("model", SIZE)
FULL = LayerSpec(kind=LayerKind.FULL, kv_heads=1, key_dim=2, value_dim=1, element_bytes=2)
STATE = LayerSpec(kind=LayerKind.STATE, state_bytes=11)
DENSE = ModelCacheSpec(layers=(FULL, FULL), dtype="float16", block_tokens=SIZE)
HYBRID = ModelCacheSpec(layers=(FULL, STATE), dtype="float16", block_tokens=SIZE)
#: Beginnings that contexts have in common.
BEGINNINGS = ((), (7,) * SIZE, (7,) * 2 * SIZE, (7,) * SIZE + (8,) * SIZE, (6,) * 5 * SIZE)

picks = st.integers(min_value=0, max_value=99)


class PoolMachine(RuleBasedStateMachine):
    """Rows start, grow, end and start again as in the engine; other threads forget blocks."""

    steps: ClassVar[int] = 0
    moves: ClassVar[set[str]] = set()

    @initialize(
        spec=st.sampled_from((DENSE, HYBRID)),
        contexts=st.integers(min_value=2, max_value=5),
        in_flight_bytes=st.sampled_from((0, 24)),
    )
    def open(self, spec: ModelCacheSpec, contexts: int, in_flight_bytes: int) -> None:
        self.arrays = NumbersForArrays(spec)
        self.loses = True
        self.spec = spec
        self.budget_bytes = contexts * spec.live_bytes(4 * SIZE) + in_flight_bytes
        self.pool = BlockPool(
            "model",
            spec,
            self.budget_bytes,
            self.arrays,
            in_flight_bytes=in_flight_bytes,
            may_lose=lambda: self.loses,
        )
        self.in_flight_bytes = in_flight_bytes
        self.pool.on_cut = self.cut_by_pool
        self.evicted_blocks = 0
        self.shared: list[Holder] = []
        self.forgotten: list[Context] = []
        for number in range(contexts):
            self.start(BEGINNINGS[number % len(BEGINNINGS)], [number % 2, 1], lose=False)

    # --- what the pool reports -------------------------------------------------------------------

    def cut_by_pool(self, context: Context, tokens: int) -> None:
        assert context.is_idle, "a context in use is freed"
        if context.is_forgotten:
            assert (context.is_saved, tokens) == (True, 0), "it reports a loss that was asked for"
        else:
            self.evicted_blocks += len(context.names) - max(tokens, context.start) // SIZE
        if not tokens:  # the saver gives up what it was writing of it
            for checkpoint in self.pool.checkpoints_of(context):
                while checkpoint in self.shared:
                    self.shared.remove(checkpoint)
                    self.pool.release(checkpoint)

    # --- choices ---------------------------------------------------------------------------------

    def running(self) -> list[Context]:
        return [one for one in self.arrays.rows if one.is_running]

    def parked(self) -> list[Context]:
        return [one for one in self.pool.contexts() if not one.is_running]

    def room(self, size_bytes: int, *, alone: bool = False, lose: bool = False) -> bool:
        """Make room, as for a row, and compare with what a look at everything says."""
        self.pool.collect()
        before_bytes = self.pool.used_bytes
        limit = self.budget_bytes - self.in_flight_bytes - self.spec.checkpoint_bytes
        withheld = 0 if alone else self.pool.withheld_bytes
        free_bytes = max(0, limit) - before_bytes - withheld
        assert self.pool.free_bytes(alone=alone) == free_bytes
        could = size_bytes <= free_bytes + self.reclaimable(unsaved=True)
        assert self.pool.could_take(size_bytes, alone=alone) is could
        unsaved = lose or self.loses
        fits = size_bytes <= free_bytes or size_bytes <= free_bytes + self.reclaimable(
            unsaved=unsaved
        )
        has_room = self.pool.make_room(size_bytes, lose=lose, alone=alone)
        assert fits or not has_room
        freed_enough = size_bytes <= self.pool.free_bytes(alone=alone)
        assert freed_enough if has_room else self.pool.used_bytes == before_bytes
        return has_room

    def reclaimable(self, *, unsaved: bool) -> int:
        idle = {one for one in self.arrays.rows if one.is_idle and (one.is_saved or unsaved)}
        ends = [one for one in self.arrays.ends if not one.users and (one.is_saved or unsaved)]
        if unsaved:
            ends += [one for one in self.arrays.ends if one.users and set() < one.contexts <= idle]
        return sum(one.size_bytes for one in idle) + sum(one.size_bytes for one in ends)

    def append(self, context: Context, tokens: tuple[int, ...]) -> None:
        context.token_ids += tokens
        self.arrays.rows[context].tokens += tokens
        whole = list(HASHER.chain(pack_ids(context.token_ids), SIZE))
        for name in whole[len(context.names) :]:
            self.pool.seal(context, name)

    def slots(self, tokens: int) -> int:
        return self.spec.blocks_for(tokens + 1) * SIZE

    # --- rows ------------------------------------------------------------------------------------

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        rest=st.lists(st.integers(min_value=0, max_value=1), min_size=1, max_size=6),
        lose=st.booleans(),
        parks=st.booleans(),
    )
    def start(
        self, beginning: tuple[int, ...], rest: list[int], *, lose: bool, parks: bool = True
    ) -> None:
        """A prompt joins: it copies what it knows from contexts that stay as they are meanwhile."""
        prompt = (*beginning, *rest)
        alone = not self.running()
        known = self.pool.find(prompt)
        sources = {piece.context for piece in known.pieces} - {None}
        pinned = [one for one in sources if one is not None and lose]
        self.pool.share(*pinned)
        try:
            if not self.room(self.spec.live_bytes(self.slots(len(prompt))), alone=alone, lose=lose):
                return
            assert all(one in self.arrays.rows for one in pinned)
            context = self.pool.allocate(self.slots(len(prompt)))
            self.arrays.rows[context] = Rows()
            assert context.is_running
            self.append(context, prompt)
            self.moves.add("start")
            if parks:
                self.pool.park(context)
        finally:
            self.pool.release(*pinned)

    @rule(at=picks, rest=st.lists(st.integers(min_value=0, max_value=1), min_size=1, max_size=5))
    def adopt(self, at: int, rest: list[int]) -> None:
        """The next turn of a parked context runs in its own arrays."""
        parked = [one for one in self.parked() if one.is_idle and not one.start and one.token_ids]
        if not parked:
            return
        context = parked[at % len(parked)]
        tokens = 1 + at % len(context.token_ids)
        self.pool.share(context)
        slots = self.slots(tokens + len(rest))
        has_room = self.room(self.spec.live_bytes(slots) - context.size_bytes)
        assert self.arrays.rows[context].tokens == tuple(context.token_ids)
        self.pool.release(context)
        if not has_room:
            return
        self.arrays.rows[context] = Rows(tuple(context.token_ids[:tokens]))
        used = context.used
        self.pool.adopt(context, tokens)
        self.pool.grow(context, slots)
        assert context.used > used
        assert (context.is_running, context.is_saved) == (True, False)
        assert (context.slots, context.size_bytes) == (slots, self.spec.live_bytes(slots))
        self.append(context, tuple(rest))
        self.moves.add("adopt")

    @rule(at=picks, rest=st.lists(st.integers(min_value=0, max_value=1), min_size=1, max_size=5))
    def decode(self, at: int, rest: list[int]) -> None:
        running = self.running()
        if not running:
            return
        context, alone = running[at % len(running)], len(running) == 1
        slots = self.slots(len(context.token_ids) + len(rest))
        if slots > context.slots:
            added_bytes = self.spec.live_bytes(slots) - context.size_bytes
            if not self.room(added_bytes, lose=alone, alone=alone):
                return
            self.pool.grow(context, slots)
        self.append(context, tuple(rest))
        self.moves.add("decode")

    @rule(at=picks, tokens=st.integers(min_value=1, max_value=9))
    def take_back(self, at: int, tokens: int) -> None:
        running = [one for one in self.running() if len(one.token_ids) >= tokens]
        if running:
            context = running[at % len(running)]
            self.pool.cut(context, tokens)
            self.arrays.rows[context].tokens = tuple(context.token_ids)
            assert len(context.token_ids) == tokens
            assert len(context.names) == tokens // SIZE

    @rule(at=picks)
    def park(self, at: int) -> None:
        running = self.running()
        if running:
            context = running[at % len(running)]
            self.pool.park(context)
            every: list[Holder] = [*self.arrays.ends, *self.arrays.rows]
            assert (context.is_running, context.used) == (False, max(one.used for one in every))
            self.moves.add("park")

    @rule(at=picks)
    def drop_row(self, at: int) -> None:
        running = self.running()
        if running:
            context = running[at % len(running)]
            self.pool.free(context)
            assert context not in self.arrays.rows
            self.pool.free(context)

    # --- segments --------------------------------------------------------------------------------

    @rule(at=picks, is_end=st.booleans())
    def share(self, at: int, *, is_end: bool) -> None:
        holders: list[Holder] = list(self.arrays.ends if is_end else self.parked())
        if holders:
            self.shared.append(holders[at % len(holders)])
            self.pool.share(self.shared[-1])
            self.moves.add("share")

    @rule(at=picks)
    def release(self, at: int) -> None:
        if self.shared:
            holder = self.shared.pop(at % len(self.shared))
            self.pool.release(holder)

    @rule(at=picks, is_end=st.booleans())
    def save(self, at: int, *, is_end: bool) -> None:
        holders: list[Holder] = list(self.arrays.ends if is_end else self.parked())
        if holders:
            holder = holders[at % len(holders)]
            self.pool.record_saved(holder)
            assert holder.is_saved

    @rule(at=picks, is_end=st.booleans())
    def touch(self, at: int, *, is_end: bool) -> None:
        holders: list[Holder] = [*(self.arrays.ends if is_end else self.arrays.rows)]
        if holders:
            holder = holders[at % len(holders)]
            self.pool.touch(holder)
            every: list[Holder] = [*self.arrays.ends, *self.arrays.rows]
            assert holder.used == max(one.used for one in every)

    @rule(at=picks, block=st.integers(min_value=0, max_value=3))
    def forget(self, at: int, block: int) -> None:
        """Another thread deletes a block by name."""
        names = [name for one in self.parked() for name in one.names[block:][:1]]
        names += [key for one in self.pool.checkpoints for key in (one.name, one.parent) if key]
        if not names:
            return
        name = names[at % len(names)]
        lost = [one for one in self.parked() if name in one.names]
        kept = [one for one in self.pool.contexts() if one not in lost]
        self.pool.forget([name])
        self.forgotten += lost
        assert all(one.is_forgotten for one in lost)
        assert self.pool.contexts() == kept
        assert not any(name in (one.name, one.parent) for one in self.pool.checkpoints)

    @rule()
    def collect(self) -> None:
        self.pool.collect()
        for context in self.forgotten:
            assert (context in self.arrays.rows) is bool(context.users or context.is_running)
        for checkpoint in self.arrays.ends:
            assert checkpoint.users or self.pool.checkpoints.get(checkpoint.name) is checkpoint
        self.forgotten = [one for one in self.forgotten if one in self.arrays.rows]

    # --- checkpoints -----------------------------------------------------------------------------

    @precondition(lambda self: self.spec.has_ends)
    @rule(at=picks, back=st.integers(min_value=0, max_value=5))
    def remember(self, at: int, back: int) -> None:
        contexts = [one for one in self.pool.contexts() if len(one.token_ids) > back]
        if not contexts:
            return
        context = contexts[at % len(contexts)]
        position, was_known = len(context.token_ids) - back, set(self.arrays.ends)

        def make(checkpoint: CacheCheckpoint) -> None:
            self.arrays.ends[checkpoint] = checkpoint.size_bytes

        found = self.pool.add_checkpoint(context, CheckpointKind.FORK, position, make)
        assert context in self.arrays.rows, "it was freed for its own checkpoint"
        assert not context.users or context in self.shared
        if found is None:
            assert set(self.arrays.ends) <= was_known
            return
        assert found.name == self.pool.checkpoint_name(context, position).name
        assert (found.position, found.size_bytes) == (position, self.spec.ends_bytes(position))
        assert self.pool.checkpoints.get(found.name) is found
        assert found in self.pool.checkpoints_of(context)
        every: list[Holder] = [*self.arrays.ends, *self.arrays.rows]
        assert found.used == max(one.used for one in every)
        self.moves.add("checkpoint")

    @rule(at=picks, frees=st.booleans())
    def thin(self, at: int, *, frees: bool) -> None:
        found = [one for one in self.pool.checkpoints if not one.users]
        if not found:
            return
        checkpoint = found[at % len(found)]
        contexts = list(checkpoint.contexts)
        if frees:
            self.pool.free(checkpoint)
            assert checkpoint not in self.arrays.ends
        elif contexts:
            self.pool.disown(contexts[0], checkpoint)
            assert checkpoint not in self.pool.checkpoints_of(contexts[0])

    # --- room ------------------------------------------------------------------------------------

    @rule(over_bytes=st.sampled_from((-30, 1, 13, 40, 100)), stays=st.booleans())
    def withhold(self, over_bytes: int, *, stays: bool) -> None:
        """Other memory of the process grows or shrinks."""
        self.collect()
        before = self.pool.used_bytes
        limit_bytes = self.budget_bytes - self.in_flight_bytes
        self.pool.withheld_bytes = max(0, limit_bytes - before + over_bytes)
        limit_bytes -= self.pool.withheld_bytes
        assert self.pool.fit() is (self.pool.used_bytes <= limit_bytes)
        if before <= limit_bytes:
            assert self.pool.used_bytes == before
        self.pool.withheld_bytes *= stays

    @rule()
    def disk(self) -> None:
        """The disk stops, or takes contexts again."""
        self.loses = not self.loses

    @rule(at=picks)
    def close(self, at: int) -> None:
        """Sequences end, and the model is unloaded."""
        if at < 95:
            return
        while self.shared:
            self.pool.release(self.shared.pop())
        self.pool.close()
        assert (self.arrays.rows, self.arrays.ends, self.pool.used_bytes) == ({}, {}, 0)
        assert not [*self.pool.contexts(), *self.pool.checkpoints]

    # --- after each step -------------------------------------------------------------------------

    @invariant()
    def accounts_hold(self) -> None:
        type(self).steps += 1
        self.pool.check_integrity(self.arrays.rows, self.arrays.ends)
        every: list[Holder] = [*self.arrays.rows, *self.arrays.ends]
        used_bytes = sum(one.size_bytes for one in every)
        stats, listed = self.pool.stats(), self.pool.contexts()
        assert stats.used_bytes == self.pool.used_bytes == used_bytes
        assert used_bytes <= self.budget_bytes - self.in_flight_bytes
        assert stats.budget_bytes == self.budget_bytes
        assert stats.evicted_blocks == self.evicted_blocks
        assert stats.blocks == sum(len(one.names) - one.start // SIZE for one in listed)
        assert stats.live_bytes == sum(one.size_bytes for one in self.running())
        assert stats.held_bytes == used_bytes - self.reclaimable(unsaved=self.loses)
        for context, rows in self.arrays.rows.items():
            held = context.token_ids[context.start :]
            assert (rows.start, list(rows.tokens)) == (context.start, held)
            assert context.users == self.shared.count(context)
            assert self.spec.full_bytes(len(held)) <= context.size_bytes
            assert len(held) <= context.slots
            for name in context.names[context.start // SIZE :] if context in listed else ():
                assert name in self.pool
                holder = self.pool.holder(name)
                assert holder in listed

    @invariant()
    def order_is_that_of_a_scan(self) -> None:
        contexts, checkpoints = list(self.arrays.rows), list(self.arrays.ends)
        for unsaved in (False, True):
            first = scanned(self.pool, contexts, checkpoints, unsaved=unsaved)
            relief = self.pool._order.next(1, unsaved=unsaved)
            assert freed_by(relief) is first
            self.moves.add(type(relief).__name__)


def test_any_order_of_moves_keeps_the_accounts() -> None:
    PoolMachine.steps, PoolMachine.moves = 0, set()
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=300,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate,),
            database=None,
        ),
    )
    assert PoolMachine.steps >= STEPS_MIN
    reliefs = {one.__name__ for one in (DropCheckpoint, TrimStart, TrimEnd, Evict)}
    assert PoolMachine.moves >= reliefs | {
        "start",
        "adopt",
        "decode",
        "park",
        "share",
        "checkpoint",
    }
