"""Single operations of the pool, beside arrays that are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind, checkpoint_fingerprint
from domain.kv.contexts import Context
from domain.kv.hashing import ID_BITS, SHARED_BIT, BlockHasher, pack_ids, unpack_ids
from domain.kv.pool import BlockPool
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from tests.support.builders.number_arrays import BLOCK_TOKENS, NumbersForArrays, Rows

SIZE = BLOCK_TOKENS
HASHER = BlockHasher("model", SIZE)
FULL = LayerSpec(kind=LayerKind.FULL, kv_heads=1, key_dim=2, value_dim=1, element_bytes=2)
STATE = LayerSpec(kind=LayerKind.STATE, state_bytes=11)
DENSE = ModelCacheSpec(layers=(FULL, FULL), dtype="float16", block_tokens=SIZE)
HYBRID = ModelCacheSpec(layers=(FULL, STATE), dtype="float16", block_tokens=SIZE)
#: Bytes of two blocks, and of eight: the sizes of the contexts below.
TWO, EIGHT = DENSE.live_bytes(2 * SIZE), DENSE.live_bytes(8 * SIZE)


def _pool(
    budget_bytes: int, spec: ModelCacheSpec = DENSE, **options: Any
) -> tuple[BlockPool, NumbersForArrays]:
    arrays = NumbersForArrays(spec)
    return BlockPool("model", spec, budget_bytes, arrays, **options), arrays


def _parked(
    pool: BlockPool, arrays: NumbersForArrays, tokens: Sequence[int], *, is_saved: bool = True
) -> Context:
    context = pool.allocate(len(tokens))
    arrays.rows[context] = Rows(tuple(tokens))
    context.token_ids += tokens
    for name in HASHER.chain(pack_ids(tokens), SIZE):
        pool.seal(context, name)
    pool.park(context)
    if is_saved:
        pool.record_saved(context)
    return context


def test_a_pool_of_defaults_gives_all_of_its_budget() -> None:
    pool, arrays = _pool(EIGHT)
    assert (pool.limit_bytes, pool.context_limit_bytes) == (EIGHT, EIGHT)
    assert pool.free_bytes() == EIGHT
    context = _parked(pool, arrays, range(8 * SIZE), is_saved=False)
    assert pool.make_room(TWO)  # what the disk lacks may be lost, without a report
    assert len(context.token_ids) == 5 * SIZE


def test_copies_in_flight_can_leave_nothing_for_contexts() -> None:
    pool, _ = _pool(TWO, HYBRID, in_flight_bytes=TWO + 1)
    assert (pool.limit_bytes, pool.context_limit_bytes) == (0, 0)
    assert _pool(10, HYBRID)[0].context_limit_bytes == 0


def test_what_the_disk_lacks_stays_where_it_may_not_be_lost() -> None:
    pool, arrays = _pool(EIGHT, may_lose=lambda: False)
    unsaved = _parked(pool, arrays, range(2 * SIZE), is_saved=False)
    pool.withheld_bytes = EIGHT - TWO
    assert (pool.free_bytes(), pool.free_bytes(alone=True)) == (0, EIGHT - TWO)
    assert pool.fit()
    pool.withheld_bytes += 1
    assert not pool.fit()
    assert not pool.make_room(1)
    assert len(unsaved.token_ids) == 2 * SIZE
    assert pool.make_room(EIGHT - TWO + 1, lose=True, alone=True)
    assert len(unsaved.token_ids) < 2 * SIZE


def test_room_is_made_if_it_takes_all_that_can_be_freed() -> None:
    pool, arrays = _pool(EIGHT)
    _parked(pool, arrays, range(2 * SIZE))
    row = pool.allocate(2 * SIZE)
    arrays.rows[row] = Rows()
    assert not pool.make_room(EIGHT - TWO + 1)
    assert pool.used_bytes == 2 * TWO, "nothing is freed in vain"
    assert pool.make_room(EIGHT - TWO)
    assert pool.contexts() == [row]


def test_a_checkpoint_takes_no_context_that_the_disk_lacks_and_an_eviction_is_reported() -> None:
    budget = 2 * HYBRID.live_bytes(SIZE)
    pool, arrays = _pool(budget, HYBRID, may_lose=lambda: False)
    cuts: list[tuple[Context, int]] = []
    pool.on_cut = lambda context, tokens: cuts.append((context, tokens))
    context = _parked(pool, arrays, range(SIZE), is_saved=False)
    other = _parked(pool, arrays, range(50, 50 + SIZE), is_saved=False)

    def make(checkpoint: CacheCheckpoint) -> None:
        arrays.ends[checkpoint] = checkpoint.size_bytes

    assert pool.add_checkpoint(context, CheckpointKind.FORK, SIZE, make) is None
    pool.record_saved(other)
    assert pool.add_checkpoint(context, CheckpointKind.FORK, SIZE, make) is not None
    assert cuts == [(other, 0)]


def test_a_cut_end_takes_windows_and_states_with_it_and_a_cut_beginning_does_not() -> None:
    ends = HYBRID.live_bytes(4 * SIZE) - HYBRID.full_bytes(4 * SIZE)
    assert ends
    both = 2 * HYBRID.live_bytes(4 * SIZE) + HYBRID.checkpoint_bytes
    pool, arrays = _pool(both, HYBRID)
    shares = _parked(pool, arrays, range(4 * SIZE))
    other = _parked(pool, arrays, [*range(2 * SIZE), *range(90, 90 + 2 * SIZE)])
    assert pool.make_room(1)
    assert (shares.start, shares.slots) == (2 * SIZE, 2 * SIZE)
    assert shares.size_bytes == HYBRID.full_bytes(2 * SIZE) + ends
    pool.free(shares)
    assert pool.make_room(pool.free_bytes() + 1)
    assert (len(other.token_ids), other.slots) == (2 * SIZE, 2 * SIZE)
    assert other.size_bytes == HYBRID.full_bytes(2 * SIZE)


def test_names_are_of_the_model_its_blocks_and_its_checkpoints() -> None:
    pool, _ = _pool(EIGHT, HYBRID)
    shared = pack_ids([SHARED_BIT | 1 << ID_BITS | one for one in range(SIZE)])
    assert pool.hasher.of_packed(None, shared) == HASHER.of_packed(None, pack_ids(range(SIZE)))
    ends = BlockHasher(checkpoint_fingerprint("model"), SIZE)
    expected = ends.of_packed(None, pack_ids(range(SIZE)))
    assert pool.checkpoints.name_of(None, list(range(SIZE))) == expected
    assert pool.checkpoints.name_of(None, list(unpack_ids(shared))) == expected


def test_each_look_and_each_change_has_the_lock() -> None:
    lock = _Lock()
    pool, arrays = _pool(2 * EIGHT, HYBRID, lock=lock)
    context = pool.allocate(SIZE)
    arrays.rows[context] = Rows()
    name = HASHER.of_packed(None, pack_ids(range(SIZE)))
    operations: list[Callable[[], object]] = [
        lambda: pool.find([1, 2]),
        lambda: pool.diverged_at([1, 2]),
        lambda: pool.guarded(lambda: lock.depth),
        lambda: name in pool,
        lambda: pool.holder(name),
        pool.contexts,
        pool.stats,
        lambda: pool.used_bytes,
        lambda: pool.seal(context, name),
        lambda: pool.cut(context, 0),
        lambda: pool.grow(context, 2 * SIZE),
        lambda: pool.park(context),
        lambda: pool.share(context),
        lambda: pool.release(context),
        lambda: pool.touch(context),
        lambda: pool.forget([name]),
        pool.collect,
        lambda: pool.free(context),
    ]
    assert pool.guarded(lambda: lock.depth) == 1
    for operation in operations:
        before = lock.entered
        operation()
        assert lock.entered > before
        assert not lock.depth


def test_lookups_ask_the_disk_and_the_contexts_in_memory() -> None:
    pool, arrays = _pool(EIGHT)
    context = _parked(pool, arrays, range(2 * SIZE))
    on_disk = set(HASHER.chain(pack_ids(range(4 * SIZE)), SIZE))
    assert sum(piece.stop - piece.start for piece in pool.find(range(4 * SIZE)).pieces) == 2 * SIZE
    found = pool.find(range(4 * SIZE), on_disk.__contains__)
    assert [(piece.context, piece.start, piece.stop) for piece in found.pieces] == [
        (context, 0, 2 * SIZE),
        (None, 2 * SIZE, 4 * SIZE),
    ]
    assert pool.diverged_at([*range(SIZE + 1), 99, 99, 99]) == SIZE + 1
    assert pool.diverged_at(range(2 * SIZE)) is None


def test_a_forgotten_context_is_reported_and_freed_when_it_is_collected() -> None:
    pool, arrays = _pool(EIGHT)
    cuts: list[tuple[Context, int]] = []
    pool.on_cut = lambda context, tokens: cuts.append((context, tokens))
    context = _parked(pool, arrays, range(2 * SIZE), is_saved=False)
    pool.forget([context.names[1]])
    assert not cuts
    pool.collect()
    assert (cuts, context.is_saved, arrays.rows) == ([(context, 0)], True, {})
    pool.collect()
    assert len(cuts) == 1


def test_a_context_that_is_forgotten_while_it_is_adopted_runs_on_and_is_found_no_more() -> None:
    pool, arrays = _pool(EIGHT)
    context = _parked(pool, arrays, range(2 * SIZE))
    pool.forget([context.names[1]])
    pool.adopt(context, 2 * SIZE)
    names = list(HASHER.chain(pack_ids(range(3 * SIZE)), SIZE))
    pool.seal(context, names[2])
    assert (context.names, pool.contexts()) == (names, [])
    pool.collect()
    assert list(arrays.rows) == [context]
    pool.park(context)
    pool.collect()
    assert not arrays.rows


def test_a_closed_pool_has_freed_checkpoints_and_contexts() -> None:
    pool, arrays = _pool(2 * EIGHT, HYBRID)
    context = _parked(pool, arrays, range(2 * SIZE))
    assert pool.add_checkpoint(
        context, CheckpointKind.ANSWER, SIZE + 1, lambda one: arrays.ends.update({one: 11})
    )
    pool.close()
    assert (arrays.rows, arrays.ends, pool.used_bytes) == ({}, {}, 0)


def test_a_checkpoint_has_what_it_was_made_of() -> None:
    pool, arrays = _pool(2 * EIGHT, HYBRID)
    context = _parked(pool, arrays, range(2 * SIZE))
    made = pool.add_checkpoint(
        context, CheckpointKind.ANSWER, SIZE + 1, lambda one: arrays.ends.update({one: 11})
    )
    assert made is not None
    named = pool.checkpoint_name(context, SIZE + 1)
    assert (made.name, made.parent, made.token_ids) == (named.name, named.parent, named.token_ids)
    assert (made.parent, made.token_ids) == (context.names[0], (SIZE,))
    assert (made.kind, made.position, made.is_saved) == (CheckpointKind.ANSWER, SIZE + 1, False)
    pool.forget([HASHER.of_packed(None, pack_ids([5]))])
    assert list(pool.checkpoints) == [made]
    pool.forget([context.names[0]])  # a checkpoint goes with the block before it
    pool.collect()
    assert arrays.ends == {}


class _Lock:
    """A lock that counts."""

    def __init__(self) -> None:
        self.depth = self.entered = 0

    def __enter__(self) -> None:
        self.depth += 1
        self.entered += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
