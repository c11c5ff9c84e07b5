"""How long drafts are, and when none is verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import takewhile

import pytest

from tests.unit.worker.engine.mlx.speculation.batch import Clock
from worker.engine.grammar.ports import LookAhead
from worker.engine.mlx.drafting.pass_times import CREDIT_PASSES, PassTimes
from worker.engine.mlx.drafting.speculation import (
    DRAFT_TOKENS_MAX,
    FIRST_DRAFT_TOKENS_MAX,
    PROBE_PASSES,
    SpeculatedRow,
    Speculation,
)
from worker.engine.mlx.sampling.masks import LogitMasks

END = 99


@dataclass
class Row:
    uid: int = 1
    tokens: list[int] = field(default_factory=lambda: [*range(1, 20), 1, 2, 3])


@pytest.fixture
def times() -> PassTimes:
    """Plain passes of a second, whose drafts cost nothing."""
    clock = Clock()
    times = PassTimes(clock)
    for rows in (1, 1, 1, 2, 2, 2):
        times.record_plain(rows)
        clock.now += 1.0
    for _ in range(3):
        times.record_reading()
        clock.now += 1.0
        times.record_drafts(2, 8, 8)
    return times


def speculation(times: PassTimes, room: int = 100) -> Speculation:
    end_ids = frozenset([END])
    return Speculation(lambda *_: room, lambda *_: None, end_ids, lambda *_: None, times)


def drafts_of(drafts: Speculation, *rows: Row, token: int = 4) -> list[list[int]]:
    """Return the drafts where the same token is drawn for all rows."""
    return drafts.confirm(rows, [token] * len(rows), drafts.guess(rows))


def cost(monkeypatch: pytest.MonkeyPatch, times: PassTimes, start_s: float, token_s: float) -> None:
    monkeypatch.setattr(times, "cost", (start_s, token_s))


@pytest.mark.parametrize(
    ("start_s", "token_s", "length"),
    # An agreement of 0.8: the fifth token is drawn with 0.33, the second with 0.64.
    [
        (0.0, 0.0, DRAFT_TOKENS_MAX),
        (0.0, 0.24, 5),
        (0.0, 0.48, 2),
        (0.0, 0.72, 0),
        (1.0, 0.24, 0),
        (0.8, 0.24, 5),
    ],
)
def test_a_draft_is_as_long_as_it_wins(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes, start_s: float, token_s: float, length: int
) -> None:
    cost(monkeypatch, times, start_s, token_s)
    [draft] = drafts_of(speculation(times), Row())
    assert len(draft) == length


def test_each_row_has_a_length_of_its_own(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    cost(monkeypatch, times, 0.1, 0.12)
    drafts = speculation(times)
    rows = [Row(1), Row(2), Row(3, [7, 8, 9])]
    drafts.guess(rows)
    drafts._lookups[2].agreement = 0.5
    assert list(map(len, drafts_of(drafts, *rows))) == [3, 1, 0]


def test_refused_drafts_are_probed_after_some_passes(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    drafts = speculation(times)
    cost(monkeypatch, times, 0.0, 1.2)
    times.credit_s = 1.0
    attempts = [bool(drafts.guess([Row()])) for _ in range(PROBE_PASSES + 1)]
    assert attempts == [False] * PROBE_PASSES + [True]
    # The credit pays for 1.2 - 0.8 + 1.2 - 0.64 seconds.
    assert drafts_of(drafts, Row()) == [[5, 6]]


def test_until_a_whole_draft_was_measured_probes_grow() -> None:
    clock = Clock()
    times = PassTimes(clock)
    for _ in range(3):
        times.record_plain(1)
        clock.now += 1.0
    drafts, row, lengths = speculation(times), Row(), []
    for _ in range(3):
        times.credit_s = 1.0
        [draft] = drafts_of(drafts, row)
        lengths.append(len(draft))
        # A pass with drafts takes longer, however many tokens are drafted.
        clock.now += 2.4
        drafts.settle([row], [draft], [*draft, 0])
    assert lengths == [FIRST_DRAFT_TOKENS_MAX, 4, DRAFT_TOKENS_MAX]


def test_a_probe_that_no_credit_pays_for_waits_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    drafts = speculation(times)
    cost(monkeypatch, times, 0.0, 50.0)
    times.credit_s = 1.9
    for _ in range(PROBE_PASSES + 1):
        assert drafts_of(drafts, Row()) == [[]]
    times.credit_s = CREDIT_PASSES
    assert drafts_of(drafts, Row()) == [[5]]


def test_nothing_is_drafted_in_debt(times: PassTimes) -> None:
    drafts = speculation(times)
    times.credit_s = -0.1
    assert drafts.guess([Row()]) == {}
    times.credit_s = 0.0
    assert drafts.guess([Row()])


def test_nothing_is_drafted_without_a_baseline_and_little_at_first() -> None:
    clock = Clock()
    times = PassTimes(clock)
    drafts = speculation(times)
    assert drafts.guess([Row()]) == {}
    for _ in range(3):
        times.record_plain(1)
        clock.now += 1.0
    assert list(map(len, drafts_of(drafts, Row(1), Row(2)))) == [FIRST_DRAFT_TOKENS_MAX, 0]


def test_room_and_end_tokens_cut_a_draft(times: PassTimes) -> None:
    assert speculation(times, room=0).guess([Row()]) == {}
    assert drafts_of(speculation(times, room=3), Row()) == [[5, 6, 7]]
    row = Row(tokens=[1, 2, 3, 4, END, 6, 1, 2, 3])
    assert drafts_of(speculation(times), row) == [[END]]
    assert drafts_of(speculation(times), row, token=5) == [[]]


def test_draws_after_the_first_other_one_are_taken_back(times: PassTimes) -> None:
    taken, counted = [], []
    drafts = Speculation(
        lambda *_: 4,
        lambda *one: taken.append(one),
        frozenset(),
        lambda *one: counted.append(one),
        times,
    )
    rows = [Row(1), Row(2)]
    guesses = drafts.guess(rows)
    proposed = drafts.confirm(rows, [4, 50], guesses)
    assert proposed == [[5, 6, 7, 8], []]
    assert drafts.settle(rows, proposed, [5, 6, 70, 80, 90, 51]) == [2, 0]
    assert (taken, counted) == ([(1, 2)], [(4, 2)])


def test_a_rejected_token_is_not_guessed_again(times: PassTimes) -> None:
    drafts, row = speculation(times), Row()
    [draft] = drafts_of(drafts, row)
    assert drafts.settle([row], [draft], [5, 6, *[70] * 9]) == [2]
    row.tokens += [4, 5, 6]
    assert drafts.guess([row]) == {}
    row.tokens += [70, 4, 5, 6]
    assert drafts.guess([row])[1][0] == 70


class _Counting:
    """A drafter that counts on from the drawn token."""

    def __init__(self) -> None:
        self.dropped: list[int] = []
        self.asked: list[int] = []

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        self.asked += [row.uid for row in rows]
        return [[*range(token + 1, token + 1 + count)] for token in drawn]

    def observe(self, *_: object) -> None:
        """It needs no states."""

    def drop(self, uids: Iterable[int]) -> None:
        self.dropped += uids


def test_a_drafter_serves_rows_without_a_guess_of_their_own(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    monkeypatch.setattr(times, "drafting_s", 1e-3)
    drafter, counted = _Counting(), []
    room = {1: 3, 2: 8, 3: 0, 4: 8, 5: 2}
    drafts = Speculation(
        lambda uid, _: room[uid],
        lambda *_: None,
        frozenset([END]),
        lambda *one: counted.append(one),
        times,
        drafter,
    )
    # The first has a guess; the others have none, no room, an end token, an end in the draft.
    rows = [Row(1), *(Row(uid, [7, 8, uid + 20]) for uid in (2, 3, 4, 5))]
    guesses = drafts.guess(rows)
    assert guesses == {1: [4, 5, 6, 7], 2: [], 4: [], 5: []}
    found = drafts.confirm(rows, [4, 30, 30, END, END - 2], guesses)
    assert found == [[5, 6, 7], [*range(31, 39)], [], [], [END - 1, END]]
    assert drafter.asked == [2, 5]
    draws = [5, 6, 7, 8, *range(31, 36), 50, 0, 0, 0, 1, 1, END - 1, END, 0]
    assert drafts.settle(rows, found, draws) == [3, 5, 0, 0, 2]
    assert counted == [(3, 3), (8, 5), (2, 2)]
    drafts.drop([2, 5])
    assert drafter.dropped == [2, 5]


class _Below(LogitMasks):
    """What the second row may draw: tokens below a limit. What the third one may is not known."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def looks_ahead(self, uid: int) -> bool:
        return uid != 3

    def is_masked(self, uid: int) -> bool:
        return uid == 2

    def look_ahead(self, uid: int, guess: Sequence[int], limit: int) -> LookAhead | None:
        if uid == 1:
            return None
        tokens = [*takewhile(self.limit.__gt__, guess)][:limit]
        return LookAhead(tokens, [None] * len(tokens), [b""] * (len(tokens) + 1))


def test_a_drafter_serves_a_restricted_row_up_to_the_first_forbidden_token(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    monkeypatch.setattr(times, "drafting_s", 1e-3)
    drafter = _Counting()
    drafts = Speculation(
        lambda *_: 8, lambda *_: None, frozenset(), lambda *_: None, times, drafter, _Below(34)
    )
    rows = [Row(uid, [7, 8, uid + 20]) for uid in (1, 2, 3)]
    guesses = drafts.guess(rows)
    assert guesses == {1: [], 2: []}
    before = drafts._agreement
    found = drafts.confirm(rows, [50, 30, 60], guesses)
    assert found == [[*range(51, 59)], [31, 32, 33], []]
    assert drafter.asked == [1, 2]
    # The first row draws other tokens; the second one all that it may, and then another one.
    assert drafts.settle(rows, found, [0] * 9 + [31, 32, 33, 7] + [0]) == [0, 3, 0]
    assert drafts._judged == 12 + 1 + 4
    assert drafts._agreement != before


def test_a_drafter_whose_tokens_are_all_forbidden_is_soon_not_asked(
    monkeypatch: pytest.MonkeyPatch, times: PassTimes
) -> None:
    cost(monkeypatch, times, 0.0, 0.3)
    monkeypatch.setattr(times, "drafting_s", 1e-3)
    monkeypatch.setattr(times, "drafting", lambda _: nullcontext())
    drafter = _Counting()
    drafts = Speculation(
        lambda *_: 8, lambda *_: None, frozenset(), lambda *_: None, times, drafter, _Below(0)
    )
    row = Row(2, [7, 8, 9])
    for _ in range(PROBE_PASSES):
        assert drafts.confirm([row], [30], drafts.guess([row])) == [[]]
    assert 1 < len(drafter.asked) < PROBE_PASSES


def test_a_dear_drafter_is_not_asked(times: PassTimes) -> None:
    drafter = _Counting()
    drafts = Speculation(
        lambda *_: 8, lambda *_: None, frozenset(), lambda *_: None, times, drafter
    )
    row = Row(tokens=[7, 8, 9])
    # It has not been measured yet.
    assert drafts.guess([row]) == {1: []}
    times.drafting_s = 5.0
    assert [drafts.guess([row]) for _ in range(PROBE_PASSES)] == [{}] * PROBE_PASSES
