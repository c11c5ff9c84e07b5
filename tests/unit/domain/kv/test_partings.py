"""Where prompts part from those before them, and what that shows about the next ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.checkpoints import (
    CLIENTS_MAX,
    PARTINGS_MAX,
    PROMPTS_MAX,
    UNPARTED_MAX,
    Partings,
    PromptEnd,
)
from domain.kv.hashing import BlockHash, BlockHasher, pack_ids

SIZE = 4
CLIENT = BlockHash(b"c" * 32)
HASHER = BlockHasher("sha256:" + "1" * 64, SIZE)
SYSTEM = list(range(100, 110))
LAST = len(SYSTEM) + 12


def names_of(prompt: Sequence[int]) -> list[BlockHash]:
    return list(HASHER.chain(pack_ids(prompt), SIZE))


def add(
    partings: Partings,
    prompt: Sequence[int],
    last: int = LAST,
    client: BlockHash = CLIENT,
    agent: str | None = "agent",
) -> PromptEnd:
    return partings.add(prompt, names_of(prompt), last_message=last, client=client, agent=agent)


def turn(number: int, reminder: int) -> list[int]:
    """Return a prompt of 12 tokens more for each turn before it, and a reminder at its end."""
    messages = [1000 * at + token for at in range(number + 2) for token in range(12)]
    return [*SYSTEM, *messages, *range(7000, 7000 + reminder)]


def last_of(number: int) -> int:
    return len(SYSTEM) + 12 * (number + 1)


def test_nothing_is_known_of_the_first_prompt() -> None:
    partings = Partings(SIZE)
    end = add(partings, turn(0, 3))
    assert (end.is_first, end.rewrites, partings.distance(CLIENT)) == (True, None, None)


def test_a_reminder_that_changes_is_expected_where_the_longest_of_the_last_ones_began() -> None:
    partings = Partings(SIZE)
    for number, reminder in enumerate((2, 3, 2)):
        add(partings, turn(number, reminder), last_of(number))
    assert partings.distance(CLIENT) == 3
    for number in range(3, 3 + PARTINGS_MAX):
        add(partings, turn(number, 1), last_of(number))
    assert partings.distance(CLIENT) == 2
    assert partings.distance(BlockHash(b"d" * 32)) is None


def test_no_parting_is_expected_of_a_client_whose_prompts_continue() -> None:
    partings = Partings(SIZE)
    before = add(partings, turn(0, 0))
    for number in range(1, 1 + UNPARTED_MAX):
        assert partings.distance(CLIENT) is None
        before = add(partings, turn(number, 0), last_of(number))
    assert partings.distance(CLIENT) == 0
    add(partings, turn(9, 0), last_of(9))
    assert before.is_continued


def test_a_repeated_prompt_has_the_same_end() -> None:
    partings = Partings(SIZE)
    assert add(partings, turn(0, 3)) is add(partings, turn(0, 3))
    assert partings.distance(CLIENT) is None
    assert len(partings) == 1


def test_the_ends_of_a_rewritten_turn_are_abandoned_those_of_the_first_a_turn_later() -> None:
    partings, name = Partings(SIZE), BlockHash(b"n" * 32)
    first = add(partings, turn(0, 3))
    first.ends = {4: BlockHash(b"a" * 32), LAST + 12: BlockHash(b"x" * 32), LAST + 14: name}
    second = add(partings, turn(1, 3), last_of(1))
    assert second.rewrites == (first, LAST + 12)
    assert second.abandoned() == []
    second.ends = {last_of(1) + 13: BlockHash(b"s" * 32)}
    third = add(partings, turn(2, 3), last_of(2))
    assert third.abandoned() == [BlockHash(b"s" * 32), name]
    assert add(partings, turn(3, 3), last_of(3)).abandoned() == []


@pytest.mark.parametrize("agent", ["fork", None])
def test_a_fork_and_a_job_without_an_agent_abandon_nothing(agent: str | None) -> None:
    partings = Partings(SIZE)
    add(partings, turn(0, 0))
    second = add(partings, turn(1, 3), last_of(1))
    second.ends = {last_of(1) + 13: BlockHash(b"s" * 32)}
    assert add(partings, turn(2, 3), last_of(2), agent=agent).abandoned() == []


def test_no_end_is_abandoned_from_which_a_prompt_went_on() -> None:
    partings = Partings(SIZE)
    add(partings, turn(0, 0))
    first = add(partings, turn(1, 3), last_of(1))
    first.ends = {last_of(1) + 14: BlockHash(b"n" * 32)}
    add(partings, [*turn(1, 3), 1, 2, 3], last_of(1) + 16)
    assert add(partings, turn(2, 3), last_of(2)).abandoned() == []


def test_another_conversation_with_the_same_system_prompt_rewrites_nothing() -> None:
    partings = Partings(SIZE)
    add(partings, [*SYSTEM, *range(20, 60)], len(SYSTEM))
    other = add(partings, [*SYSTEM, *range(20, 25), *range(60, 90)], len(SYSTEM))
    assert (other.is_first, other.rewrites, partings.distance(CLIENT)) == (True, None, None)


def test_an_earlier_message_that_differs_rewrites_nothing() -> None:
    partings = Partings(SIZE)
    add(partings, turn(0, 0))
    add(partings, turn(1, 3), last_of(1))
    edited = turn(2, 3)
    edited[len(SYSTEM) + 3] = 1
    assert add(partings, edited, last_of(2)).rewrites is None


@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=40).map(tuple), min_size=1, max_size=12
    )
)
def test_the_prompt_that_shares_most_tokens_is_found(prompts: list[tuple[int, ...]]) -> None:
    partings = Partings(SIZE)
    for at, prompt in enumerate(prompts):
        _, common = partings._before(prompt, names_of(prompt))
        assert common == max((_common(prompt, one) for one in prompts[:at]), default=0)
        add(partings, prompt, 0)


def test_what_is_remembered_is_bounded() -> None:
    partings = Partings(SIZE)
    for number in range(PROMPTS_MAX + 10):
        client = BlockHash(number.to_bytes(32, "big"))
        add(partings, [number, *range(20)], 0, client)
        add(partings, [number, *range(20), 1], 0, client)
    assert len(partings) == PROMPTS_MAX
    assert sum(map(len, partings._by_parent.values())) == PROMPTS_MAX
    assert len(partings._distances) == CLIENTS_MAX


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def test_erased_prompts_are_not_compared_and_what_they_showed_stays() -> None:
    partings = Partings(SIZE)
    add(partings, turn(0, 8))
    add(partings, turn(1, 8))
    distance = partings.distance(CLIENT)
    assert distance
    emptied = partings.without_prompts()
    assert len(emptied) == 0
    assert add(emptied, turn(2, 8)).rewrites is None
    assert emptied.distance(CLIENT) == distance
