"""Drafts pause while they cost more than they win."""

from __future__ import annotations

from worker.engine.mlx.speculation import PAUSE_MAX, PAUSE_MIN, DraftPace


def test_agreement_follows_what_is_drawn() -> None:
    pace = DraftPace()
    first = pace.agreement
    pace.record(0, drafted=8, accepted=8, cost=0.2)
    assert first < pace.agreement < 1
    for _ in range(40):
        pace.record(0, drafted=8, accepted=0, cost=0.2)
    assert 0 < pace.agreement < 0.05


def test_a_sequence_that_loses_pauses_longer_each_time_and_tries_again() -> None:
    pauses: list[int] = []
    pace, tokens, spent = DraftPace(), 0, 0.0
    while len(pauses) < 7:
        while not pace.is_paused(tokens):
            pace.record(tokens, drafted=4, accepted=0, cost=0.5)
            spent += 0.5
        started = tokens
        while pace.is_paused(tokens):
            tokens += 1
        pauses.append(tokens - started)
    assert pauses == [32, 64, 128, 256, 512, 512, 512]
    assert (pauses[0], pauses[-1]) == (PAUSE_MIN, PAUSE_MAX)
    assert spent < 0.01 * tokens


def test_a_wrong_guess_costs_a_little() -> None:
    pace = DraftPace()
    pace.record(0, drafted=0, accepted=0, cost=0.1)
    assert not pace.is_paused(0)
    for _ in range(20):
        pace.record(0, drafted=0, accepted=0, cost=0.1)
    assert pace.is_paused(0)


def test_what_was_won_bears_some_losses() -> None:
    pace = DraftPace()
    pace.record(0, drafted=4, accepted=4, cost=0.2)
    for _ in range(5):
        pace.record(0, drafted=4, accepted=0, cost=1.0)
        assert not pace.is_paused(0)
    pace.record(0, drafted=4, accepted=0, cost=1.0)
    assert pace.is_paused(0)
