from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from domain.kv.hashing import BlockHash, BlockHasher, block_hash, pack_ids, unpack_ids

token_ids = st.integers(min_value=0, max_value=2**32 - 1)
blocks = st.lists(token_ids, min_size=1, max_size=8).map(tuple)
fingerprints = st.text(min_size=1, max_size=8)
parents = st.none() | st.binary(min_size=32, max_size=32).map(BlockHash)
contents = st.tuples(fingerprints, parents, blocks)


def test_the_name_is_sha256_of_the_documented_bytes() -> None:
    parent = BlockHash(b"p" * 32)
    written_out = (
        b"semantic-kv\0\2\0\0\0" + b"\3\0\0\0m\xc3\xa9" + b"\1" + parent + b"\2\0\0\0"
        b"\7\0\0\0\0\1\0\0"
    )
    assert block_hash("mé", parent, [7, 256]) == hashlib.sha256(written_out).digest()


def test_the_first_block_has_the_documented_name() -> None:
    written_out = b"semantic-kv\0\2\0\0\0" + b"\1\0\0\0m" + b"\0" + b"\1\0\0\0" + b"\7\0\0\0"
    assert block_hash("m", None, [7]) == hashlib.sha256(written_out).digest()


@given(contents, contents)
def test_two_contents_never_share_a_name(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assume(one != other)
    assert block_hash(*one) != block_hash(*other)


@given(contents, st.data())
def test_any_single_change_changes_the_name(
    content: tuple[str, BlockHash | None, tuple[int, ...]], data: st.DataObject
) -> None:
    fingerprint, parent, ids = content
    place = data.draw(st.integers(min_value=0, max_value=len(ids) - 1))
    bit = 1 << data.draw(st.integers(min_value=0, max_value=31))
    variants = [
        (fingerprint + "x", parent, ids),
        (fingerprint, block_hash(fingerprint, parent, ids), ids),
        (fingerprint, None if parent is not None else BlockHash(bytes(32)), ids),
        (fingerprint, parent, (*ids, 0)),
        (fingerprint, parent, (*ids[:place], ids[place] ^ bit, *ids[place + 1 :])),
    ]
    names = {block_hash(*variant) for variant in [content, *variants]}
    assert len(names) == 1 + len(variants)


@given(fingerprints, fingerprints, blocks)
def test_moving_the_border_between_parts_changes_the_name(
    one: str, other: str, ids: tuple[int, ...]
) -> None:
    whole = block_hash(one + other, None, ids)
    assert whole != block_hash(one, None, ids)
    assert whole != block_hash(one, BlockHash(other.encode().ljust(32, b"\0")[:32]), ids)


def test_a_context_is_not_named_like_the_same_tokens_in_one_block() -> None:
    ids = pack_ids([1, 2, 3, 4])
    (one,) = BlockHasher("m").chain(ids, 4)
    assert one not in list(BlockHasher("m").chain(ids, 2))


@given(fingerprints, st.lists(token_ids, max_size=30), st.integers(min_value=1, max_value=7))
def test_a_context_is_the_chain_of_its_blocks(
    fingerprint: str, ids: list[int], block_tokens: int
) -> None:
    full = list(BlockHasher(fingerprint).chain(pack_ids(ids), block_tokens))
    assert len(full) == len(ids) // block_tokens
    parent = None
    for number, name in enumerate(full):
        start = number * block_tokens
        parent = block_hash(fingerprint, parent, ids[start : start + block_tokens])
        assert name == parent


@given(st.lists(token_ids, max_size=8))
def test_packed_ids_come_back(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert len(packed) == 4 * len(ids)
    assert list(unpack_ids(packed)) == ids


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_an_id_that_does_not_fit_is_refused(token_id: int) -> None:
    with pytest.raises(OverflowError):
        block_hash("m", None, [token_id])


def test_an_empty_block_is_noticed() -> None:
    with pytest.raises(AssertionError, match="at least one token"):
        block_hash("m", None, [])
