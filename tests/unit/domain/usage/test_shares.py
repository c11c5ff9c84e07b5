"""Shares of a common total: no holders, however many and greedy, leave nothing for the next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from domain.shares import Shares, Shortage, share_of

TOTAL = 40
HOLDERS = st.sampled_from("abcd")


def fill(shares: Shares, holder: str) -> int:
    taken = 0
    while shares.take([holder]) is None:
        taken += 1
    return taken


def test_each_holder_takes_half_of_what_the_others_leave() -> None:
    shares = Shares(100)
    assert [fill(shares, holder) for holder in "abcd"] == [50, 25, 13, 6]
    assert shares.take(["a"]) == Shortage(share_of(100, others=44), of_holder=True)
    shares.give_back(["b"], 25)
    assert fill(shares, "d") > 0


def test_a_client_without_a_share_may_take_all_and_is_then_refused_for_the_total() -> None:
    shares = Shares(3)
    assert [shares.take([]) for _ in range(4)] == [None] * 3 + [Shortage(3, of_holder=False)]
    assert shares.take(["a"]) == Shortage(3, of_holder=False)


def test_without_a_total_no_agent_is_short() -> None:
    assert Shares(None).take(["a"], 10**9) is None


@given(st.integers(1, 10_000), st.integers(1, 5))
def test_greedy_holders_leave_room_for_one_more(total: int, greedy: int) -> None:
    shares = Shares(total)
    for holder in range(greedy):
        fill(shares, str(holder))
    # Each leaves half, rounded down.
    assert (fill(shares, "next") > 0) is (total >= 2**greedy)


class SharesMachine(RuleBasedStateMachine):
    """Random holders of random sizes, against plain sums."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares(TOTAL)
        self.mine = Counter[str]()
        self.held = 0
        self.taken: list[tuple[list[str], int]] = []

    @rule(holders=st.lists(HOLDERS, unique=True, max_size=2), size=st.integers(0, 15))
    def take(self, holders: list[str], size: int) -> None:
        wanted = all(
            self.mine[one] + size <= share_of(TOTAL, others=self.held - self.mine[one])
            for one in holders
        )
        fits = self.held + size <= TOTAL and wanted
        assert (self.shares.take(holders, size) is None) is fits
        if fits:
            self.held += size
            self.mine.update(dict.fromkeys(holders, size))
            self.taken.append((holders, size))

    @rule()
    def give_back(self) -> None:
        if self.taken:
            holders, size = self.taken.pop(0)
            self.shares.give_back(holders, size)
            self.held -= size
            self.mine.subtract(dict.fromkeys(holders, size))

    @invariant()
    def sums_agree(self) -> None:
        assert self.shares.held == self.held <= TOTAL


TestShares = SharesMachine.TestCase
