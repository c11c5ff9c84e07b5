"""Drafts become longer while they are drawn, and pause while they cost more than they win."""

from __future__ import annotations

from worker.engine.mlx.speculation.draft_pace import (
    DRAFT_TOKENS_MAX,
    PAUSE_MAX,
    PAUSE_MIN,
    DraftPace,
)


def test_drafts_grow_while_all_is_drawn_and_shrink_to_what_was() -> None:
    pace = DraftPace()
    lengths = []
    for _ in range(3):
        lengths.append(pace.limit_at(0))
        pace.record(0, drafted=lengths[-1], accepted=lengths[-1], cost=0.2)
    assert lengths == [4, 8, 8]
    pace.record(0, drafted=DRAFT_TOKENS_MAX, accepted=4, cost=0.2)
    assert pace.limit_at(0) == 5
    pace.record(0, drafted=5, accepted=0, cost=0.2)
    assert pace.limit_at(0) == 2


def test_a_sequence_that_loses_pauses_longer_each_time_and_tries_again() -> None:
    pauses: list[int] = []
    pace, tokens, spent = DraftPace(), 0, 0.0
    while len(pauses) < 7:
        while pace.limit_at(tokens):
            pace.record(tokens, drafted=4, accepted=0, cost=0.5)
            spent += 0.5
        started = tokens
        while not pace.limit_at(tokens):
            tokens += 1
        pauses.append(tokens - started)
    assert pauses == [32, 64, 128, 256, 512, 512, 512]
    assert (pauses[0], pauses[-1]) == (PAUSE_MIN, PAUSE_MAX)
    assert spent < 0.01 * tokens


def test_a_wrong_guess_costs_a_little_and_leaves_the_length() -> None:
    pace = DraftPace()
    pace.record(0, drafted=0, accepted=0, cost=0.1)
    assert pace.limit_at(0) == 4
    for _ in range(20):
        pace.record(0, drafted=0, accepted=0, cost=0.1)
    assert not pace.limit_at(0)


def test_what_was_won_bears_some_losses() -> None:
    pace = DraftPace()
    pace.record(0, drafted=4, accepted=4, cost=0.2)
    for _ in range(5):
        pace.record(0, drafted=4, accepted=0, cost=1.0)
        assert pace.limit_at(0)
    pace.record(0, drafted=4, accepted=0, cost=1.0)
    assert not pace.limit_at(0)
