"""Prompts of several owners in one cache: apart, or sharing whole blocks and nothing finer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.checkpoints import CacheCheckpoint, CheckpointIndex, CheckpointKind, places
from domain.kv.contexts import Context, ContextIndex
from domain.kv.hashing import BlockHash, BlockHasher, block_hash, common_tokens, pack_ids
from domain.kv.owned_tokens import cache_ids, context_of, extended, owned, sharing_blocks
from domain.values import Owner

SIZE = 3
HASHER = BlockHasher("model", SIZE)
ANN, BOB = sharing_blocks(Owner("ann")), sharing_blocks(Owner("bob"))
#: Few different ids, so that prompts share beginnings and part anywhere.
tokens_lists = st.lists(st.integers(min_value=0, max_value=1), max_size=4 * SIZE + 2)


def known(token_ids: Sequence[int], owner: Owner | None) -> list[int]:
    """Return the ids of a prompt in the cache."""
    return list(cache_ids(owned(tuple(token_ids), owner)))


def names_of(ids: Sequence[int]) -> list[BlockHash]:
    return list(HASHER.chain(pack_ids(ids), SIZE))


def index_with(token_ids: Sequence[int], owner: Owner | None) -> ContextIndex:
    ids = known(token_ids, owner)
    index = ContextIndex(HASHER, SIZE)
    index.add(Context(token_ids=ids, names=names_of(ids), is_running=False))
    return index


@given(held=tokens_lists, wanted=tokens_lists)
def test_another_owner_finds_whole_blocks_and_the_same_owner_every_token(
    held: list[int], wanted: list[int]
) -> None:
    index, common = index_with(held, ANN), common_tokens(held, wanted)
    assert index.find(known(wanted, ANN)).tokens == common
    assert index.find(known(wanted, BOB)).tokens == common - common % SIZE
    assert index.find(known(wanted, None)).tokens == common - common % SIZE


@given(held=tokens_lists, wanted=tokens_lists)
def test_where_another_owner_parts_is_known_in_whole_blocks(
    held: list[int], wanted: list[int]
) -> None:
    at = index_with(held, ANN).diverged_at(known(wanted, BOB))
    assert at is None or at % SIZE == 0
    # A token more or less of the same block changes nothing that another owner sees.
    common = common_tokens(held, wanted)
    worse = wanted[: common - common % SIZE] + [2] * (len(wanted) - common + common % SIZE)
    if at is not None:
        assert index_with(held, ANN).diverged_at(known(worse, BOB)) == at


@given(held=tokens_lists, wanted=tokens_lists, owner=st.sampled_from([Owner("bob"), BOB, None]))
def test_owners_that_do_not_share_have_no_prefix_in_common(
    held: list[int], wanted: list[int], owner: Owner | None
) -> None:
    assert index_with(held, Owner("ann")).find(known(wanted, owner)).tokens == 0


@given(tokens=tokens_lists)
def test_whole_blocks_have_the_names_and_ids_of_plain_ones(tokens: list[int]) -> None:
    """The disk verifies a name with the ids in the file."""
    names = names_of(known(tokens, ANN))
    assert names == names_of(tokens) == names_of(known(tokens, BOB))
    parent = None
    for at, name in enumerate(names):
        ids = HASHER.covered(known(tokens, ANN)[at * SIZE : (at + 1) * SIZE])
        assert list(ids) == tokens[at * SIZE : (at + 1) * SIZE]
        assert block_hash("model", parent, ids) == name
        parent = name


@given(tokens=st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=SIZE - 1))
def test_partial_blocks_have_a_name_for_each_owner(tokens: list[int]) -> None:
    packed = [pack_ids(known(tokens, one)) for one in (ANN, BOB, None, Owner("ann"))]
    assert len({HASHER.of_packed(None, one) for one in packed}) == len(packed)


@pytest.mark.parametrize(("position", "is_shared"), [(SIZE, True), (SIZE + 1, False)])
def test_a_checkpoint_is_shared_where_a_block_ends(position: int, *, is_shared: bool) -> None:
    prompt = list(range(10, 10 + 2 * SIZE + 1))
    index = CheckpointIndex(BlockHasher("checkpoints", SIZE))
    ids = known(prompt, ANN)
    context = Context(token_ids=ids, names=names_of(ids))
    named = index.name_at(context, position, SIZE)
    index.add(
        CacheCheckpoint(
            name=named.name,
            parent=named.parent,
            token_ids=named.token_ids,
            position=position,
            kind=CheckpointKind.FORK,
        )
    )
    for owner, finds in ((ANN, True), (BOB, is_shared), (None, is_shared)):
        wanted = known(prompt, owner)
        sites = list(places(wanted, names_of(wanted), len(wanted), SIZE))
        found = [one for one in sites if index.at(one) is not None]
        possible = {name for one in sites for _, name in index.names_at(one, [1, SIZE])}
        assert bool(found) == (named.name in possible) == finds


@pytest.mark.parametrize("owner", [ANN, BOB, Owner("ann"), None])
def test_a_context_that_runs_again_belongs_to_the_owner_of_its_prompt(owner: Owner | None) -> None:
    tokens = owned(tuple(range(2 * SIZE + 1)), owner)
    held = known(range(SIZE), ANN)
    context = context_of(tokens, held)
    context.append(SIZE)
    context.extend(range(SIZE + 1, 2 * SIZE + 1))
    assert tuple(context) == tuple(cache_ids(tokens))
    more = cache_ids(extended(tokens, [7]))
    assert tuple(more[:-1]) == tuple(context)


def test_an_id_beyond_its_bits_is_refused() -> None:
    with pytest.raises(AssertionError):
        known([1 << 20], ANN)


def test_owner_who_shares_blocks_has_a_name_that_no_key_has() -> None:
    assert sharing_blocks(None) is None
    assert sharing_blocks(Owner("alice")) == "shared:alice"


@pytest.mark.parametrize("owner", [ANN, Owner("ann"), None])
@pytest.mark.parametrize("count", [1, SIZE - 1, SIZE])
def test_name_of_a_block_covers_plain_ids_in_shared_whole_blocks_only(
    owner: Owner | None, count: int
) -> None:
    ids, plain = tuple(known([5] * count, owner)), (5,) * count
    is_shared = owner == ANN and count == SIZE
    assert HASHER.covered(ids) == (plain if is_shared else ids)
    assert (HASHER.covered(ids) == plain) is (is_shared or owner is None)
    # A file keeps the covered ids, and its name is verified with them.
    assert HASHER.of_packed(None, pack_ids(HASHER.covered(ids))) == HASHER.of_packed(
        None, pack_ids(ids)
    )


def test_hasher_without_a_size_covers_ids_as_they_are() -> None:
    ids = tuple(known([5], ANN))
    for hasher in (BlockHasher("model"), BlockHasher("model", 0)):
        assert hasher.covered(ids) == ids
    assert BlockHasher("model", 1).covered(ids) == (5,)
    assert BlockHasher("model").covered(()) == ()
