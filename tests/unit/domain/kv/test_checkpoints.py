"""Checkpoints: the positions at which one may stand, their names, and those in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.checkpoints import (
    CacheCheckpoint,
    CheckpointIndex,
    CheckpointKind,
    CheckpointSite,
    checkpoint_fingerprint,
    places,
)
from domain.kv.hashing import BlockHash, BlockHasher, pack_ids

SIZE = 4
BLOCKS = BlockHasher("model")
PROMPT = list(range(100, 100 + 3 * SIZE + 2))


def index_of(*checkpoints: CacheCheckpoint) -> CheckpointIndex:
    index = CheckpointIndex(BlockHasher(checkpoint_fingerprint("model")))
    for checkpoint in checkpoints:
        index.add(checkpoint)
    return index


def names_of(token_ids: Sequence[int]) -> list[BlockHash]:
    return list(BLOCKS.chain(pack_ids(token_ids), SIZE))


def checkpoint_at(token_ids: Sequence[int], position: int) -> CacheCheckpoint:
    """Return the checkpoint after ``position`` tokens of a prompt."""
    block = (position - 1) // SIZE
    parent = names_of(token_ids)[block - 1] if block else None
    ids = tuple(token_ids[block * SIZE : position])
    return CacheCheckpoint(
        name=index_of().name_of(parent, ids),
        parent=parent,
        token_ids=ids,
        position=position,
        kind=CheckpointKind.PROMPT,
    )


def sites(stop: int, token_ids: Sequence[int] = PROMPT) -> list[CheckpointSite]:
    return list(places(token_ids, names_of(token_ids), stop, SIZE))


def test_places_are_searched_from_the_last_one() -> None:
    first, second, _ = names_of(PROMPT)
    assert sites(2 * SIZE + 1) == [
        CheckpointSite(second, 2 * SIZE, PROMPT[2 * SIZE : 2 * SIZE + 1]),
        CheckpointSite(first, SIZE, PROMPT[SIZE : 2 * SIZE]),
        CheckpointSite(None, 0, PROMPT[:SIZE]),
    ]


def test_a_block_border_belongs_to_the_block_that_ends_there() -> None:
    assert sites(2 * SIZE)[0] == CheckpointSite(names_of(PROMPT)[0], SIZE, PROMPT[SIZE : 2 * SIZE])
    assert checkpoint_at(PROMPT, 2 * SIZE).token_ids == tuple(PROMPT[SIZE : 2 * SIZE])


def test_nothing_has_no_places() -> None:
    assert sites(0) == []


@given(
    stop=st.integers(min_value=1, max_value=len(PROMPT)),
    position=st.integers(min_value=1, max_value=len(PROMPT)),
)
def test_a_checkpoint_is_found_at_exactly_one_place_up_to_its_position(
    stop: int, position: int
) -> None:
    checkpoint = checkpoint_at(PROMPT, position)
    index = index_of(checkpoint)
    found = [place for place in sites(stop) if index.at(place) is checkpoint]
    assert len(found) == (1 if position <= stop else 0)


@given(
    position=st.integers(min_value=1, max_value=len(PROMPT)),
    changed=st.integers(min_value=0, max_value=len(PROMPT) - 1),
)
def test_a_checkpoint_of_other_tokens_is_not_found(position: int, changed: int) -> None:
    other = [*PROMPT[:changed], 7, *PROMPT[changed + 1 :]]
    index = index_of(checkpoint_at(PROMPT, position))
    found = any(index.at(place) for place in sites(len(other), other))
    assert found is (changed >= position)


def test_the_last_of_several_at_a_place_is_taken() -> None:
    both = [checkpoint_at(PROMPT, SIZE + 1), checkpoint_at(PROMPT, SIZE + 3)]
    for order in (both, both[::-1]):
        index = index_of(*order)
        assert index.at(sites(2 * SIZE)[0]) is both[1]
        assert index.at(sites(SIZE + 2)[0]) is both[0]


def test_a_removed_checkpoint_is_not_found() -> None:
    one, other = checkpoint_at(PROMPT, SIZE + 1), checkpoint_at(PROMPT, SIZE + 3)
    index = index_of(one, other)
    index.remove(other)
    index.remove(other)
    assert index.at(sites(2 * SIZE)[0]) is one
    index.remove(one)
    assert index.at(sites(2 * SIZE)[0]) is None
    assert (len(index), list(index), index.get(one.name)) == (0, [], None)


def test_removing_a_checkpoint_leaves_a_newer_one_of_the_same_name() -> None:
    old, new = checkpoint_at(PROMPT, SIZE + 1), checkpoint_at(PROMPT, SIZE + 1)
    index = index_of(old)
    index.remove(old)
    index.add(new)
    index.remove(old)
    assert index.get(new.name) is new
    assert index.at(sites(2 * SIZE)[0]) is new


def test_a_checkpoint_is_added_once() -> None:
    with pytest.raises(AssertionError):
        index_of(checkpoint_at(PROMPT, 5), checkpoint_at(PROMPT, 5))


def test_names_of_checkpoints_are_no_names_of_blocks() -> None:
    assert checkpoint_at(PROMPT, SIZE).name != names_of(PROMPT)[0]
    assert checkpoint_fingerprint("model") != checkpoint_fingerprint("other")


@given(lengths=st.lists(st.integers(min_value=1, max_value=SIZE), max_size=6))
def test_the_names_at_a_place_are_those_of_its_checkpoints(lengths: list[int]) -> None:
    place = sites(2 * SIZE + 3)[0]
    found = list(index_of().names_at(place, lengths))
    wanted = sorted({length for length in lengths if length <= 3}, reverse=True)
    assert found == [
        (2 * SIZE + length, checkpoint_at(PROMPT, 2 * SIZE + length).name) for length in wanted
    ]
