"""Texts that are recognised as too long before their end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.mlx.prompt import segment_tokenizer
from worker.engine.mlx.prompt.segment_tokenizer import LIKELY_CHARS_PER_TOKEN, tokens_beyond

CHARS_PER_TOKEN = 4
CONTEXT = 10_000


class Counter:
    """Counts a token for every four characters, and remembers what it was given."""

    def __init__(self) -> None:
        self.chars = 0

    def __call__(self, texts: Sequence[str]) -> int:
        self.chars += sum(map(len, texts))
        return sum(-(-len(text) // CHARS_PER_TOKEN) for text in texts)


def test_a_text_that_may_fit_is_not_counted() -> None:
    count = Counter()
    assert tokens_beyond("a" * CONTEXT * LIKELY_CHARS_PER_TOKEN, CONTEXT, count) is None
    assert count.chars == 0


def test_no_more_is_counted_than_shows_that_it_is_too_long() -> None:
    count = Counter()
    tokens = tokens_beyond("a" * 4_000_000, CONTEXT, count)
    assert tokens == pytest.approx(1_000_000, rel=0.01)
    assert count.chars <= 4 * segment_tokenizer.SLICE_CHARS


@given(
    length=st.integers(1, 20_000),
    context=st.integers(1, 1000),
    slice_chars=st.integers(1, 3000),
)
def test_a_text_that_fits_is_never_refused(length: int, context: int, slice_chars: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_tokenizer, "SLICE_CHARS", slice_chars)
        tokens = tokens_beyond("a" * length, context, Counter())
    if tokens is not None:
        assert tokens > context
        assert length > context * CHARS_PER_TOKEN
