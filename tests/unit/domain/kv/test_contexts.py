"""The contexts in memory, against a model that looks at all tokens of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain.kv.contexts import Context, ContextIndex, KnownPrefix, Piece
from domain.kv.hashing import BlockHash, BlockHasher, pack_ids

SIZE = 3
HASHER = BlockHasher("model")

#: Few different ids, so that contexts share beginnings and part anywhere.
tokens_lists = st.lists(st.integers(min_value=0, max_value=1), max_size=4 * SIZE + 2)


def names_of(token_ids: Sequence[int]) -> list[BlockHash]:
    return list(HASHER.chain(pack_ids(token_ids), SIZE))


def context_of(token_ids: Sequence[int], start: int = 0) -> Context:
    """Return a parked context that has lost its beginning."""
    names = names_of(token_ids)
    assert start <= len(names) * SIZE
    return Context(token_ids=list(token_ids), names=names, start=start, is_running=False)


def index_of(*contexts: Context) -> ContextIndex:
    index = ContextIndex(HASHER, SIZE)
    for context in contexts:
        index.add(context)
    return index


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def holds(context: Context, token_ids: Sequence[int], stop: int) -> bool:
    """Return whether a context has the tokens of the block that ends at ``stop``."""
    return context.start <= stop - SIZE and common(context.token_ids, token_ids) >= stop


def known_tokens(
    contexts: Sequence[Context], token_ids: Sequence[int], stored: set[BlockHash]
) -> int:
    """Return how many tokens memory and disk have, by looking at all of them."""
    names, blocks = names_of(token_ids), 0
    while blocks < len(names) and (
        names[blocks] in stored
        or any(holds(one, token_ids, (blocks + 1) * SIZE) for one in contexts)
    ):
        blocks += 1
    at = blocks * SIZE
    last = [one for one in contexts if not blocks or holds(one, token_ids, at)]
    tails = [common(one.token_ids, token_ids) - at for one in last if one.start <= at]
    return at + max(0, *tails, 0)


class IndexMachine(RuleBasedStateMachine):
    """Any sequence of changes leaves an index that agrees with the tokens of its contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of()
        self.contexts: list[Context] = []
        self.stored: set[BlockHash] = set()

    @rule(token_ids=tokens_lists, blocks=st.integers(min_value=0, max_value=4))
    def add(self, token_ids: list[int], blocks: int) -> None:
        context = context_of(token_ids, min(blocks, len(token_ids) // SIZE) * SIZE)
        self.index.add(context)
        self.contexts.append(context)

    @precondition(lambda self: self.contexts)
    @rule(at=st.integers(min_value=0), token=st.integers(min_value=0, max_value=1))
    def decode(self, at: int, token: int) -> None:
        context = self.contexts[at % len(self.contexts)]
        context.token_ids.append(token)
        names = names_of(context.token_ids)
        if len(names) > len(context.names):
            self.index.append(context, names[-1])

    @precondition(lambda self: self.contexts)
    @rule(at=st.integers(min_value=0), blocks=st.integers(min_value=0, max_value=5))
    def trim_start(self, at: int, blocks: int) -> None:
        context = self.contexts[at % len(self.contexts)]
        start = min(context.start + blocks * SIZE, len(context.names) * SIZE)
        self.index.trim_start(context, start)
        assert context.start == start

    @precondition(lambda self: self.contexts)
    @rule(at=st.integers(min_value=0), cut=st.integers(min_value=0, max_value=20))
    def trim_end(self, at: int, cut: int) -> None:
        context = self.contexts[at % len(self.contexts)]
        tokens = max(context.start, len(context.token_ids) - cut)
        kept = context.token_ids[:tokens]
        self.index.trim_end(context, tokens)
        assert context.token_ids == kept
        assert context.names == names_of(kept)

    @precondition(lambda self: self.contexts)
    @rule(at=st.integers(min_value=0))
    def remove(self, at: int) -> None:
        self.index.remove(self.contexts.pop(at % len(self.contexts)))

    @rule(token_ids=tokens_lists)
    def store(self, token_ids: list[int]) -> None:
        self.stored |= set(names_of(token_ids)[-1:])

    @rule(token_ids=tokens_lists)
    def find(self, token_ids: list[int]) -> None:
        found = self.index.find(token_ids, self.stored.__contains__)
        names = names_of(token_ids)
        assert list(found.names) == names[: len(found.names)]
        at = 0
        for piece in found.pieces:
            assert piece.start == at < piece.stop
            at = piece.stop
            if piece.context is None:
                assert all(
                    name in self.stored and name not in self.index
                    for name in names[piece.start // SIZE : piece.stop // SIZE]
                )
            else:
                assert piece.context.start <= piece.start
                assert common(piece.context.token_ids, token_ids) >= piece.stop
        assert at == found.tokens
        assert found.tokens == known_tokens(self.contexts, token_ids, self.stored)

    @rule(token_ids=tokens_lists)
    def part(self, token_ids: list[int]) -> None:
        at = known_tokens(self.contexts, token_ids, set())
        parts = at < len(token_ids) and any(
            len(one.token_ids) > at >= one.start
            and common(one.token_ids, token_ids) == at
            # A context without the block before the parting is not looked at.
            and (at < SIZE or holds(one, token_ids, at - at % SIZE))
            for one in self.contexts
        )
        assert self.index.diverged_at(token_ids) == (at if parts else None)

    @invariant()
    def blocks_are_found_under_their_names(self) -> None:
        assert len(self.index) == len(self.contexts)
        held = [one.names[one.start // SIZE :] for one in self.contexts]
        for names in held:
            assert all(name in self.index for name in names)
        for context, names in zip(self.contexts, held, strict=True):
            others = {
                name for other in self.contexts if other is not context for name in _held(other)
            }
            shared = next((at for at, name in enumerate(names) if name not in others), len(names))
            assert self.index.shared_blocks(context) == shared


def _held(context: Context) -> list[BlockHash]:
    return context.names[context.start // SIZE :]


TestIndex = IndexMachine.TestCase


# --- examples ----------------------------------------------------------------------------------


A = list(range(2 * SIZE))


def test_the_context_that_holds_most_of_the_end_is_preferred_for_all_blocks() -> None:
    short, long = context_of(A), context_of([*A, 7, 8])
    for contexts in ((short, long), (long, short)):
        found = index_of(*contexts).find([*A, 7, 9])
        assert found.pieces == (Piece(0, 7, long),)


def test_a_context_without_its_beginning_continues_the_one_that_has_it() -> None:
    beginning, rest = context_of([*A, 9]), context_of([*A, *A], start=2 * SIZE)
    found = index_of(beginning, rest).find([*A, *A, 1])
    assert found.pieces == (Piece(0, 2 * SIZE, beginning), Piece(2 * SIZE, 4 * SIZE, rest))


def test_tokens_after_blocks_on_the_disk_are_not_in_memory() -> None:
    context = context_of(A[:SIZE])
    stored = set(names_of(A))
    found = index_of(context).find([*A, 1], stored.__contains__)
    assert found.pieces == (Piece(0, SIZE, context), Piece(SIZE, 2 * SIZE, None))
    assert found.tokens == 2 * SIZE


def test_tokens_after_the_last_whole_block_are_added_to_it() -> None:
    context = context_of([*A, 7, 8])
    found = index_of(context).find([*A, 7, 9])
    assert found == KnownPrefix(
        names=tuple(names_of(A)), pieces=(Piece(0, 7, context),), tokens=2 * SIZE + 1
    )
    assert found.cut(5) == (Piece(0, 5, context),)


def test_partial_block_on_the_disk_is_known_until_a_token_of_it_is_trimmed() -> None:
    context = context_of([*A, 7])
    index = index_of(context)
    context.tail = (names_of(A)[0], 2 * SIZE + 1)
    index.trim_end(context, 2 * SIZE + 1)
    assert context.tail == (names_of(A)[0], 2 * SIZE + 1)
    index.trim_end(context, 2 * SIZE)
    assert context.tail is None


def test_fewer_tokens_than_a_block_are_found() -> None:
    context = context_of([1, 2])
    found = index_of(context).find([1, 2, 3])
    assert found == KnownPrefix(pieces=(Piece(0, 2, context),), tokens=2)


@given(token_ids=tokens_lists, tokens=st.integers(min_value=0, max_value=14))
def test_a_cut_prefix_has_its_first_tokens(token_ids: list[int], tokens: int) -> None:
    other = context_of(token_ids[: len(token_ids) // 2])
    stored = set(names_of(token_ids))
    known = index_of(other).find(token_ids, stored.__contains__)
    tokens = min(tokens, known.tokens)
    pieces = known.cut(tokens)
    assert sum(piece.stop - piece.start for piece in pieces) == tokens
    assert all(piece.start < piece.stop <= tokens for piece in pieces)


def test_a_prefix_is_not_cut_beyond_its_end() -> None:
    with pytest.raises(AssertionError):
        index_of(context_of(A)).find(A).cut(2 * SIZE + 1)


@pytest.mark.parametrize(
    ("token_ids", "at"),
    [
        (A, None),
        (A[:-1], None),
        ([*A, 1], None),
        ([*A[:-1], 99, 1], 2 * SIZE - 1),
        ([99], 0),
        ([], None),
    ],
)
def test_a_prompt_parts_at_the_first_token_that_differs(
    token_ids: list[int], at: int | None
) -> None:
    assert index_of(context_of(A)).diverged_at(token_ids) == at


def test_a_prompt_parts_from_the_context_that_goes_on() -> None:
    assert index_of(context_of([0]), context_of([0, 1])).diverged_at([0, 0]) == 1


def test_nothing_parts_from_an_empty_memory() -> None:
    assert index_of().diverged_at(A) is None


@pytest.mark.parametrize("start", [-SIZE, 3 * SIZE])
def test_a_beginning_beyond_the_context_is_not_trimmed(start: int) -> None:
    context = context_of(A)
    with pytest.raises(AssertionError):
        index_of(context).trim_start(context, start)


def test_a_context_that_was_removed_can_still_change() -> None:
    """It is deleted on another thread while it runs."""
    context = context_of(A)
    index = index_of(context)
    index.remove(context)
    index.append(context, names_of([*A, *A])[2])
    context.token_ids += A[:SIZE]
    index.trim_end(context, SIZE)
    assert context.names == names_of(A)[:1]
    index.trim_start(context, SIZE)
    index.remove(context)
    assert not len(index)
