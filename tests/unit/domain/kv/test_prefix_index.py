"""The index against the plain reading of what it promises, over all stored contexts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.kv.hashing import BlockHash, block_hash, block_hashes
from domain.kv.prefix_index import BlockDivergence, Match, PrefixIndex, TailMatch
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec

FINGERPRINT = "sha256:m"
BLOCK_TOKENS = 4

FULL = LayerSpec(kind=LayerKind.FULL, kv_heads=1, key_dim=1, value_dim=1, element_bytes=2)
STATE = LayerSpec(kind=LayerKind.STATE, state_bytes=8)


def sliding(window: int) -> LayerSpec:
    return LayerSpec(
        kind=LayerKind.SLIDING, kv_heads=1, key_dim=1, value_dim=1, element_bytes=2, window=window
    )


def spec_of(*layers: LayerSpec) -> ModelCacheSpec:
    return ModelCacheSpec(layers=layers, dtype="bfloat16", block_tokens=BLOCK_TOKENS)


SPECS = {
    "full": spec_of(FULL),
    "window of a block and more": spec_of(FULL, sliding(6)),
    "window shorter than a block": spec_of(sliding(2), FULL),
    "hybrid": spec_of(STATE, FULL),
}

contexts = st.lists(st.integers(min_value=0, max_value=1), max_size=13).map(tuple)


def store(index: PrefixIndex, ids: tuple[int, ...]) -> tuple[BlockHash, ...]:
    """Insert all blocks of a context, its tail included, and return their names."""
    full, tail_ids, tail_hash = block_hashes(FINGERPRINT, ids, BLOCK_TOKENS)
    parent = None
    for number, name in enumerate(full):
        index.insert(name, parent, ids[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS])
        parent = name
    if tail_hash is None:
        return full
    index.insert(tail_hash, parent, tail_ids)
    return (*full, tail_hash)


def index_of(spec: ModelCacheSpec, *stored: tuple[int, ...]) -> PrefixIndex:
    index = PrefixIndex(FINGERPRINT, spec)
    for ids in stored:
        store(index, ids)
    return index


@dataclass(frozen=True)
class Block:
    """A stored block as brute force sees it: all tokens before it, and its own."""

    before: tuple[int, ...]
    own: tuple[int, ...]

    @property
    def name(self) -> BlockHash:
        full = block_hashes(FINGERPRINT, self.before, BLOCK_TOKENS).full
        return block_hash(FINGERPRINT, full[-1] if full else None, self.own)


def blocks_of(stored: list[tuple[int, ...]]) -> set[Block]:
    return {
        Block(ids[:start], ids[start : start + BLOCK_TOKENS])
        for ids in stored
        for start in range(0, len(ids), BLOCK_TOKENS)
    }


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def full_blocks_matched(blocks: set[Block], prompt: tuple[int, ...]) -> int:
    count = 0
    while Block(
        prompt[: count * BLOCK_TOKENS],
        prompt[count * BLOCK_TOKENS : (count + 1) * BLOCK_TOKENS],
    ) in {block for block in blocks if len(block.own) == BLOCK_TOKENS}:
        count += 1
    return count


def can_be_cut(spec: ModelCacheSpec, tokens: int) -> bool:
    """Return from the layers alone whether each keeps what the first tokens of a block need."""
    return all(
        layer.kind is LayerKind.FULL or (layer.kind is LayerKind.SLIDING and tokens <= layer.window)
        for layer in spec.layers
    )


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@settings(max_examples=150, deadline=None)
@given(stored=st.lists(contexts, max_size=8), prompt=contexts)
def test_the_longest_match_is_that_of_brute_force(
    spec: ModelCacheSpec, stored: list[tuple[int, ...]], prompt: tuple[int, ...]
) -> None:
    match = index_of(spec, *stored).longest_match(prompt)

    blocks = blocks_of(stored)
    count = full_blocks_matched(blocks, prompt)
    before, rest = prompt[: count * BLOCK_TOKENS], prompt[count * BLOCK_TOKENS :]
    usable = {
        block.name: shared(block.own, rest)
        for block in blocks
        if block.before == before
        and (can_be_cut(spec, len(block.own)) or shared(block.own, rest) == len(block.own))
    }
    best = max(usable.values(), default=0)
    assert match.full == block_hashes(FINGERPRINT, before, BLOCK_TOKENS).full
    assert match.tokens == len(before) + best
    if best == 0:
        assert match.tail is None
    else:
        assert match.tail is not None
        assert match.tail.usable_tokens == best == usable[match.tail.hash]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@settings(max_examples=100, deadline=None)
@given(stored=st.lists(contexts, max_size=8), prompt=contexts)
def test_the_divergence_is_that_of_brute_force(
    spec: ModelCacheSpec, stored: list[tuple[int, ...]], prompt: tuple[int, ...]
) -> None:
    divergence = index_of(spec, *stored).nearest_divergence(prompt)

    furthest = max((shared(ids, prompt) for ids in stored), default=0)
    if furthest == len(prompt):
        assert divergence is None
    else:
        contradicted = any(
            shared(ids, prompt) == furthest and len(ids) > furthest for ids in stored
        )
        assert divergence == BlockDivergence(token_index=furthest, contradicted=contradicted)


@settings(max_examples=100, deadline=None)
@given(stored=st.lists(contexts, max_size=8), prompt=contexts, removed=st.sets(st.integers(0, 20)))
def test_what_was_removed_is_not_matched(
    stored: list[tuple[int, ...]], prompt: tuple[int, ...], removed: set[int]
) -> None:
    index = index_of(SPECS["full"], *stored)
    gone = {name for place, name in enumerate(sorted(known(index))) if place in removed}
    for name in gone:
        assert index.remove(name) is True
        assert index.remove(name) is False
    match = index.longest_match(prompt)
    assert not gone & set(match.full)
    assert match.tail is None or match.tail.hash not in gone
    for name in known(index):
        index.remove(name)
    assert not index._children, "the memory of removed blocks is given back"


def known(index: PrefixIndex) -> list[BlockHash]:
    return list(index._entries)


def test_an_identical_prompt_matches_all_but_what_the_caller_withholds() -> None:
    prompt = (1, 2, 3, 4, 5, 6, 7, 8)
    index = index_of(SPECS["full"], prompt)
    first, second = block_hashes(FINGERPRINT, prompt, BLOCK_TOKENS).full
    assert index.longest_match(prompt[:-1]) == Match(
        full=(first,),
        tail=TailMatch(hash=second, stored_tokens=4, usable_tokens=3),
        tokens=7,
    )


def test_a_snapshot_serves_only_a_prompt_that_contains_all_of_it() -> None:
    index = index_of(SPECS["hybrid"], (1, 2, 3))
    assert index.longest_match((1, 2)).tail is None
    assert index.longest_match((1, 2, 9)).tail is None
    assert index.longest_match((1, 2, 3, 9)).tokens == 3


def test_the_longest_of_several_fitting_snapshots_is_taken() -> None:
    index = index_of(SPECS["hybrid"], (1,), (1, 2), (1, 2, 5), (1, 2, 3, 8))
    assert index.longest_match((1, 2, 3, 4)).tokens == 2


def test_blocks_of_another_model_are_not_known() -> None:
    index = index_of(SPECS["full"], (1, 2, 3, 4))
    other = PrefixIndex("sha256:other", SPECS["full"])
    (name,) = known(index)
    with pytest.raises(AssertionError, match="does not match the tokens"):
        other.insert(name, None, (1, 2, 3, 4))


def test_a_block_without_its_parent_waits_for_it() -> None:
    ids = (1, 2, 3, 4, 5, 6, 7, 8)
    first, second = block_hashes(FINGERPRINT, ids, BLOCK_TOKENS).full
    index = PrefixIndex(FINGERPRINT, SPECS["full"])
    index.insert(second, first, ids[4:])
    assert index.longest_match(ids).tokens == 0
    index.insert(first, None, ids[:4])
    assert index.longest_match(ids).full == (first, second)


def test_a_full_index_forgets_what_was_longest_unused() -> None:
    index = PrefixIndex(FINGERPRINT, SPECS["full"], blocks_max=2)
    (old,) = store(index, (1, 1, 1, 1))
    (unused,) = store(index, (2, 2, 2, 2))
    index.longest_match((1, 1, 1, 1))
    new = block_hash(FINGERPRINT, None, (3, 3))
    assert index.insert(new, None, (3, 3)) == unused
    assert len(index) == 2
    assert old in index
    assert new in index
    assert index.insert(old, None, (1, 1, 1, 1)) is None, "known already"


def test_the_end_of_a_matched_context_is_forgotten_before_its_start() -> None:
    index = PrefixIndex(FINGERPRINT, SPECS["full"], blocks_max=3)
    ids = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    names = store(index, ids)
    index.longest_match(ids)
    others = [(3, 3), (3, 4), (3, 5)]
    forgotten = [
        index.insert(block_hash(FINGERPRINT, None, other), None, other) for other in others
    ]
    assert forgotten == list(reversed(names))


def test_a_matched_tail_outlives_a_newer_block() -> None:
    index = PrefixIndex(FINGERPRINT, SPECS["full"], blocks_max=2)
    (tail,) = store(index, (1, 1))
    (newer,) = store(index, (2, 2))
    index.longest_match((1, 1))
    assert index.insert(block_hash(FINGERPRINT, None, (3,)), None, (3,)) == newer
    assert tail in index


def test_a_prompt_that_goes_on_after_what_is_known_contradicts_nothing() -> None:
    index = index_of(SPECS["full"], (1, 2, 3, 4, 5))
    assert index.nearest_divergence((1, 2, 3, 4, 5, 6)) == BlockDivergence(
        token_index=5, contradicted=False
    )
    assert index.nearest_divergence((1, 2, 3, 4, 6)) == BlockDivergence(
        token_index=4, contradicted=True
    )
