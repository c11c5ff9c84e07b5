"""What is freed first when a context needs room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import hypothesis.strategies as st
import pytest
from hypothesis import given

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind
from domain.kv.contexts import Context, ContextIndex
from domain.kv.hashing import BlockHash, BlockHasher, pack_ids
from domain.kv.relief import (
    DropCheckpoint,
    Evict,
    Relief,
    ReliefOrder,
    TrimEnd,
    TrimStart,
)

_SIZE = 4
_HASHER = BlockHasher("model")


def _context(start: int, used: int, *, is_saved: bool = True) -> Context:
    ids = [start] * 2 * _SIZE
    return Context(
        token_ids=ids,
        names=list(_HASHER.chain(pack_ids(ids), _SIZE)),
        is_running=False,
        is_saved=is_saved,
        used=used,
    )


def _order(
    contexts: Sequence[Context],
    checkpoints: Sequence[CacheCheckpoint] = (),
    *,
    block_bytes: int = 100,
) -> ReliefOrder:
    index = ContextIndex(_HASHER, _SIZE)
    for context in contexts:
        index.add(context)
    order = ReliefOrder(index, block_tokens=_SIZE, block_bytes=block_bytes)
    for context in contexts:
        order.add(context)
    for checkpoint in checkpoints:
        wanted, checkpoint.contexts, checkpoint.busy = checkpoint.contexts, set(), 0
        order.add(checkpoint)
        for context in wanted:
            order.join(context, checkpoint)
    return order


# --- the order -----------------------------------------------------------------------------------

SHARED = [9] * 2 * _SIZE


def _talk(
    token_ids: list[int], used: int, *, is_saved: bool = True, is_running: bool = False
) -> Context:
    return Context(
        token_ids=list(token_ids),
        names=list(_HASHER.chain(pack_ids(token_ids), _SIZE)),
        is_running=is_running,
        is_saved=is_saved,
        used=used,
    )


def _checkpoint(used: int, *, is_saved: bool = True, users: int = 0) -> CacheCheckpoint:
    return CacheCheckpoint(
        name=BlockHash(bytes([used]) * 32),
        parent=None,
        token_ids=(used,),
        position=1,
        kind=CheckpointKind.ANSWER,
        is_saved=is_saved,
        users=users,
        used=used,
    )


def test_saved_checkpoints_go_first_the_least_recently_used_before_others() -> None:
    contexts = [_context(1, used=1)]
    old, young = _checkpoint(2), _checkpoint(3)
    busy, unsaved = _checkpoint(0, users=1), _checkpoint(1, is_saved=False)
    every = [young, busy, unsaved, old]
    assert _order(contexts, every).next(50, unsaved=False) == DropCheckpoint(old)
    assert _order(contexts, every).next(50, unsaved=True) == DropCheckpoint(unsaved)
    left = _order(contexts, [busy, unsaved])
    assert not isinstance(left.next(50, unsaved=False), DropCheckpoint)


def test_shared_beginnings_go_before_anything_that_would_be_read_again() -> None:
    oldest = _talk([1] * 3 * _SIZE, used=1)
    old, young = _talk([*SHARED, 2, 2], used=2), _talk([*SHARED, 3, 3], used=3)
    contexts = [young, old, oldest]
    assert _order(contexts).next(50, unsaved=False) == TrimStart(old, 2 * _SIZE)
    old.start = 2 * _SIZE
    # The last copy of the beginning stays.
    assert _order(contexts).next(50, unsaved=False) == TrimEnd(oldest, 2 * _SIZE)


def test_a_beginning_is_shared_from_the_moment_at_which_another_context_holds_it() -> None:
    parked, row = _talk([*SHARED, 2], used=1), _talk([], used=2, is_running=True)
    index = ContextIndex(_HASHER, _SIZE)
    order = ReliefOrder(index, block_tokens=_SIZE, block_bytes=100)
    for context in (parked, row):
        index.add(context)
        order.add(context)
    assert order.next(1, unsaved=False) == TrimEnd(parked, _SIZE)
    row.token_ids += SHARED
    index.append(row, parked.names[0])
    order.compare(parked)
    order.compare(row)
    assert order.next(1, unsaved=False) == TrimStart(parked, _SIZE)
    index.remove(row)
    assert order.next(1, unsaved=False) == TrimEnd(parked, _SIZE)


def test_a_context_that_another_one_holds_whole_is_evicted_and_not_trimmed() -> None:
    whole, longer = _talk(SHARED, used=1, is_saved=False), _talk([*SHARED, 3, 3], used=2)
    assert _order([whole, longer]).next(50, unsaved=False) == Evict(whole)


def test_a_beginning_that_a_running_context_shares_is_trimmed_from_the_parked_one() -> None:
    parked, row = _talk([*SHARED, 2], used=5), _talk([*SHARED, 3], used=1, is_running=True)
    assert _order([row, parked]).next(50, unsaved=False) == TrimStart(parked, 2 * _SIZE)


@pytest.mark.parametrize(
    ("needed_bytes", "blocks"), [(1, 5), (200, 5), (201, 5), (301, 4), (700, 1), (701, 0)]
)
def test_the_end_goes_first_and_at_least_a_quarter_of_it(needed_bytes: int, blocks: int) -> None:
    context = _talk([1] * 8 * _SIZE, used=1)
    relief = _order([context]).next(needed_bytes, unsaved=False)
    expected = TrimEnd(context, blocks * _SIZE) if blocks else Evict(context)
    assert relief == expected


def test_a_context_without_its_beginning_keeps_what_follows_it() -> None:
    context = _talk([1] * 8 * _SIZE, used=1)
    context.start = 2 * _SIZE
    assert _order([context]).next(100, unsaved=False) == TrimEnd(context, 6 * _SIZE)


def test_a_model_without_attention_evicts_whole_contexts() -> None:
    context = _talk([1] * 8 * _SIZE, used=1)
    assert _order([context], block_bytes=0).next(1, unsaved=False) == Evict(context)


def test_nothing_is_freed_of_nothing() -> None:
    assert _order([]).next(50, unsaved=True) is None


@st.composite
def _memories(draw: st.DrawFn) -> tuple[list[Context], list[CacheCheckpoint]]:
    contexts = []
    for number in range(draw(st.integers(min_value=0, max_value=5))):
        shared = SHARED[: draw(st.integers(min_value=0, max_value=2)) * _SIZE]
        own = [number] * draw(st.integers(min_value=0, max_value=5 * _SIZE))
        context = _talk(
            [*shared, *own],
            used=number,
            is_saved=draw(st.booleans()),
            is_running=draw(st.booleans()),
        )
        context.users = draw(st.integers(min_value=0, max_value=1))
        contexts.append(context)
    checkpoints = [
        _checkpoint(
            number,
            is_saved=draw(st.booleans()),
            users=draw(st.integers(min_value=0, max_value=1)),
        )
        for number in range(draw(st.integers(min_value=0, max_value=3)))
    ]
    return contexts, checkpoints


def _apply(relief: Relief, contexts: list[Context], checkpoints: list[CacheCheckpoint]) -> None:
    match relief:
        case DropCheckpoint(checkpoint):
            checkpoints.remove(checkpoint)
        case TrimStart(context, start):
            assert start > context.start
            context.start = start
        case TrimEnd(context, tokens):
            assert tokens < len(context.token_ids)
            del context.token_ids[tokens:], context.names[tokens // _SIZE :]
        case Evict(context):
            contexts.remove(context)
        case _:
            assert_never(relief)


def _lost(relief: Relief, contexts: list[Context]) -> bool:
    """Return whether it frees whole blocks that no other context holds, or a checkpoint."""
    match relief:
        case TrimStart(context, start):
            names = context.names[context.start // _SIZE : start // _SIZE]
        case TrimEnd(context, tokens):
            names = context.names[tokens // _SIZE :]
        case Evict(context):
            names = context.names[context.start // _SIZE :]
            if len(context.token_ids) > len(context.names) * _SIZE:
                return True
        case _:
            return True
    held = [
        name
        for other in contexts
        if other is not context
        for name in other.names[other.start // _SIZE :]
    ]
    return any(name not in held for name in names)


@given(
    memory=_memories(),
    needed_bytes=st.integers(min_value=1, max_value=2000),
    unsaved=st.booleans(),
)
def test_memory_is_freed_to_the_end_and_nothing_in_use_or_unsaved_with_it(
    memory: tuple[list[Context], list[CacheCheckpoint]], needed_bytes: int, *, unsaved: bool
) -> None:
    contexts, checkpoints = memory
    for _ in range(100):
        relief = _order(contexts, checkpoints).next(needed_bytes, unsaved=unsaved)
        if relief is None:
            break
        freed = relief.checkpoint if isinstance(relief, DropCheckpoint) else relief.context
        assert not freed.users
        assert isinstance(freed, CacheCheckpoint) or not freed.is_running
        assert unsaved or freed.is_saved or not _lost(relief, contexts)
        _apply(relief, contexts, checkpoints)
    else:
        pytest.fail("it never ends")
    # What is left is in use, or the disk lacks it.
    assert all(one.users or not (one.is_saved or unsaved) for one in checkpoints)
    assert all(not one.is_idle or not (one.is_saved or unsaved) for one in contexts)


# --- what could be freed at once -----------------------------------------------------------------


def _sized(size: int, *, is_saved: bool = True, is_running: bool = False) -> Context:
    context = _talk([size] * _SIZE, used=size, is_saved=is_saved, is_running=is_running)
    context.size_bytes = size
    return context


def _end(size: int, *contexts: Context, is_saved: bool = True, users: int = 0) -> CacheCheckpoint:
    end = _checkpoint(1, is_saved=is_saved, users=users)
    end.used = end.size_bytes = size
    end.contexts = set(contexts)
    return end


def test_parked_contexts_and_saved_checkpoints_can_be_freed_at_once() -> None:
    saved, running = _sized(1), _sized(10, is_running=True)
    read, unsaved = _sized(100), _sized(1000, is_saved=False)
    read.users = 1
    contexts = [saved, running, read, unsaved]
    ends = [_end(10_000), _end(100_000, users=1), _end(1_000_000, is_saved=False)]
    assert _order(contexts, ends).reclaimable_bytes(unsaved=False) == 1 + 10_000
    assert _order(contexts).reclaimable_bytes(unsaved=True) == 1 + 1000


def test_pinned_checkpoints_go_only_with_all_their_contexts() -> None:
    one, other, running = _sized(1), _sized(10, is_saved=False), _sized(100, is_running=True)
    ends = [
        _end(1000, one, other, is_saved=False, users=1),
        _end(10_000, one, running, is_saved=False, users=1),
        _end(100_000, is_saved=False, users=1),
        _end(1_000_000, running, is_saved=False),
    ]
    contexts = [one, other, running]
    assert _order(contexts, ends).reclaimable_bytes(unsaved=True) == 11 + 1_001_000
    assert _order(contexts, ends).reclaimable_bytes(unsaved=False) == 1


def test_a_checkpoint_that_is_joined_again_counts_its_context_once() -> None:
    running = _sized(1, is_running=True)
    end = _end(10, users=1)
    order = _order([running], [end])
    order.join(running, end)
    order.join(running, end)
    order.check_integrity()
    assert (end.busy, order.ends_of[running]) == (1, {end: None})
    assert order.reclaimable_bytes(unsaved=True) == 0
    order.part(running, end)
    order.part(running, end)
    order.check_integrity()
    assert (end.busy, end.contexts, order.ends_of[running]) == (0, set(), {})


def test_a_checkpoint_waits_for_the_contexts_that_are_in_use() -> None:
    one, other = _sized(1, is_running=True), _sized(2, is_running=True)
    end = _end(10, one, other, users=1, is_saved=False)
    order = _order([one, other], [end])
    assert (end.busy, order.reclaimable_bytes(unsaved=True)) == (2, 0)
    with order.changing(one):
        one.is_running = False
    assert (end.busy, order.reclaimable_bytes(unsaved=True)) == (1, 1)
    with order.changing(other):
        other.is_running = False
    assert (end.busy, order.reclaimable_bytes(unsaved=True)) == (0, 13)
    order.check_integrity()
