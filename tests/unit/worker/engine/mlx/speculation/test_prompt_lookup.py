"""What a sequence is guessed to go on with."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.owned_tokens import cache_ids, context_of, owned
from worker.engine.mlx.drafting import prompt_lookup
from worker.engine.mlx.drafting.prompt_lookup import FIRST_AGREEMENT, PromptLookup


def entries(lookup: PromptLookup) -> int:
    return len(lookup._young) + len(lookup._old)


def test_a_copy_is_continued() -> None:
    tokens = [*range(100, 120), 7, 8, 100, 101]
    lookup = PromptLookup(tokens)
    assert lookup.propose(4) == []
    tokens.append(102)
    assert lookup.propose(4) == [103, 104, 105, 106]
    tokens += [103, 104]
    assert lookup.propose(2) == [105, 106]


def test_a_copy_of_an_owner_is_continued_with_plain_ids() -> None:
    prompt = owned((*range(100, 120), 7, 8, 100, 101), "key:a")
    tokens = context_of(prompt, list(cache_ids(prompt)))
    assert tokens[0] != 100
    lookup = PromptLookup(tokens)
    assert lookup.propose(1) == []
    tokens.append(102)
    assert lookup.propose(4) == [103, 104, 105, 106]
    tokens.extend([103, 104])
    assert lookup.propose(2) == [105, 106]
    assert lookup.agreement > FIRST_AGREEMENT


def test_after_an_edit_the_copy_is_found_again() -> None:
    tokens = [*range(100, 120), 7, 8, *range(100, 104)]
    lookup = PromptLookup(tokens)
    assert lookup.propose(1) == [104]
    tokens.append(55)
    assert lookup.propose(1) == []
    tokens += [105, 106]
    assert lookup.propose(1) == []
    tokens.append(107)
    assert lookup.propose(3) == [108, 109, 110]


def test_a_place_that_guesses_right_is_kept_although_a_later_one_matches() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 70, 3, 4, 5, 99, 1, 2, 3]
    lookup = PromptLookup(tokens)
    assert lookup.propose(1) == [4]
    tokens += [4, 5]
    assert lookup.propose(2) == [6, 70]
    assert PromptLookup(tokens).propose(1) == [99]


def test_a_repetition_goes_on_over_its_own_end() -> None:
    assert PromptLookup([1, 2, 1, 2, 1]).propose(5) == [2, 1, 2, 1, 2]
    assert PromptLookup([9] * 4).propose(3) == [9, 9, 9]


def test_a_long_prompt_is_indexed_in_pieces() -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(50_000) for _ in range(2 * prompt_lookup.GRAMS_PER_CALL)]
    copied = tokens[-20:-10]
    tokens += copied
    lookup = PromptLookup(tokens)
    assert lookup.propose(1) == []
    assert entries(lookup) == prompt_lookup.GRAMS_PER_CALL
    lookup.propose(1)
    assert lookup.propose(2) == tokens[-20:-18]


def test_the_index_forgets_its_oldest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "GRAMS_MAX", 100)
    tokens = list(range(1000))
    lookup = PromptLookup(tokens)
    for token in range(1000, 1500):
        tokens.append(token)
        lookup.propose(0)
        assert entries(lookup) <= 2 * (100 + prompt_lookup.GRAMS_PER_CALL)
    for token in range(1500, 1700):
        tokens.append(token)
        lookup.propose(0)
    assert entries(lookup) <= 200
    tokens += [5, 6, 7]
    assert lookup.propose(1) == []
    tokens += [1640, 1641, 1642]
    assert lookup.propose(1) == [1643]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 9))
def test_a_guess_follows_three_tokens_that_stood_there_before(
    appended: list[int], count: int
) -> None:
    tokens: list[int] = []
    lookup = PromptLookup(tokens)
    for token in appended:
        tokens.append(token)
        guess = lookup.propose(count)
        last = tokens[-3:]
        places = [at for at in range(3, len(tokens)) if tokens[at - 3 : at] == last]
        if not places or not count:
            assert guess == []
        else:
            assert len(guess) == count
            assert guess[0] in {tokens[at] for at in places}


def test_ids_beyond_the_key_do_not_mix_up_places() -> None:
    big = 1 << 21
    tokens = [0, big, 5, 7, 1, 0, 5]
    assert PromptLookup(tokens).propose(1) == []


def test_agreement_follows_the_guesses_after_one_that_was_right() -> None:
    tokens = [*range(100, 160), 7, 100, 101, 102]
    lookup = PromptLookup(tokens)
    first = lookup.agreement
    lookup.propose(1)
    tokens.append(103)
    lookup.propose(1)
    assert lookup.agreement == first
    tokens.append(104)
    lookup.propose(1)
    assert first < lookup.agreement < 1
    tokens += [105, 106, 8]
    before = lookup.agreement
    lookup.propose(1)
    assert lookup.agreement < before
    tokens += [120, 121, 122]
    known = lookup.agreement
    lookup.propose(1)
    tokens.append(9)
    lookup.propose(1)
    assert lookup.agreement == known
