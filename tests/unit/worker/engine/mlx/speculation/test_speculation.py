"""How long drafts are, and when none is verified."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from worker.engine.mlx.speculation import (
    ATTEMPT_PASSES_MIN,
    DRAFT_TOKENS_MAX,
    PassTimes,
    Speculation,
)

END = 99


@dataclass
class Row:
    uid: int = 1
    tokens: list[int] = field(default_factory=lambda: [*range(1, 20), 1, 2, 3])


@pytest.fixture
def times() -> PassTimes:
    return PassTimes()


def speculation(times: PassTimes, room: int = 100) -> Speculation:
    end_ids = frozenset([END])
    return Speculation(lambda *_: room, lambda *_: None, end_ids, lambda *_: None, times)


def cost(monkeypatch: pytest.MonkeyPatch, times: PassTimes, of_a_position: float) -> None:
    monkeypatch.setattr(times, "position_cost", lambda _: of_a_position)


def test_drafts_are_as_long_as_they_win(monkeypatch: pytest.MonkeyPatch, times: PassTimes) -> None:
    drafts = speculation(times)
    lengths = []
    for position_cost in (0.0, 0.24, 0.48, 0.72):
        cost(monkeypatch, times, position_cost)
        lengths.append([len(guess) - 1 for guess in drafts.guess([Row()]).values()])
    # An agreement of 0.8: the fifth token is drawn with 0.33, the second with 0.64.
    assert lengths == [[DRAFT_TOKENS_MAX], [5], [2], []]


def test_refused_drafts_are_attempted_after_some_passes(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    drafts = speculation(times)
    cost(monkeypatch, times, 5.0)
    attempts = [bool(drafts.guess([Row()])) for _ in range(4 * ATTEMPT_PASSES_MIN)]
    assert [at + 1 for at, attempt in enumerate(attempts) if attempt] == [32, 96]


def test_room_and_end_tokens_cut_a_draft(times: PassTimes) -> None:
    assert speculation(times, room=0).guess([Row()]) == {}
    assert speculation(times, room=3).guess([Row()]) == {1: [4, 5, 6, 7]}
    row = Row(tokens=[1, 2, 3, 4, END, 6, 1, 2, 3])
    drafts = speculation(times)
    guesses = drafts.guess([row])
    assert drafts.confirm([row], [4], guesses) == [[END]]
    assert drafts.confirm([row], [5], guesses) == [[]]


def test_draws_after_the_first_other_one_are_taken_back() -> None:
    taken, counted = [], []
    drafts = Speculation(
        lambda *_: 4, lambda *one: taken.append(one), frozenset(), lambda *one: counted.append(one)
    )
    rows = [Row(1), Row(2)]
    guesses = drafts.guess(rows)
    proposed = drafts.confirm(rows, [4, 50], guesses)
    assert proposed == [[5, 6, 7, 8], []]
    assert drafts.settle(rows, proposed, [5, 6, 70, 80, 90, 51]) == [2, 0]
    assert (taken, counted) == ([(1, 2)], [(4, 2)])
