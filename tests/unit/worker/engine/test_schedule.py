"""Who goes next: cheapest first, nobody passed for ever, company waited for, streams kept alive."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduling.policies import (
    DECODE_SHARE,
    PASSES_MAX,
    PIECE_TOKENS_MIN,
    WAIT_S_MAX,
    BatchWindow,
    FairQueue,
    PrefillPace,
)
from worker.engine.scheduling.waiting_room import WaitingRoom

FOREVER = math.inf


def line_of(*costs: int, wait_s_max: float = FOREVER) -> FairQueue[int]:
    """Return a line of people named by the order in which they came."""
    line: FairQueue[int] = FairQueue(wait_s_max=wait_s_max)
    for name, cost in enumerate(costs):
        line.add(name, cost=cost, now=0.0)
    return line


class TestFairLine:
    def test_cheapest_goes_first_and_equals_in_order_of_arrival(self) -> None:
        assert line_of(5, 1, 3, 1).order(0.0) == [1, 3, 2, 0]

    def test_one_that_waited_long_enough_goes_before_cheaper_ones(self) -> None:
        line = line_of(9, wait_s_max=WAIT_S_MAX)
        line.add(1, cost=1, now=WAIT_S_MAX / 2)
        assert line.order(WAIT_S_MAX - 0.001) == [1, 0]
        assert line.order(WAIT_S_MAX) == [0, 1]

    def test_one_put_back_goes_before_all(self) -> None:
        line = line_of(1, 2)
        line.put_back(7)
        line.put_back(8)
        assert line.order(0.0) == [8, 7, 0, 1]
        line.serve(8, 0.0)
        assert line.remove(8)
        assert 7 in line
        assert line.clear() == [7, 0, 1]
        assert not len(line)

    def test_excused_one_is_not_passed(self) -> None:
        line = line_of(9)
        for name in range(1, 3 * PASSES_MAX):
            line.add(name, cost=1, now=0.0)
            line.serve(name, 0.0, excused=[0])
            line.remove(name)
        line.add(99, cost=1, now=0.0)
        assert line.order(0.0) == [99, 0]

    def test_leaving_twice_is_told(self) -> None:
        line = line_of(1)
        assert line.remove(0)
        assert not line.remove(0)

    @given(st.lists(st.one_of(st.none(), st.integers(1, 100)), max_size=200))
    def test_nobody_is_passed_more_often_than_the_bound(self, events: list[int | None]) -> None:
        """A number is an arrival of that cost, ``None`` lets the first of the order go."""
        line: FairQueue[int] = FairQueue(wait_s_max=FOREVER)
        waiting: list[int] = []
        passed: dict[int, int] = {}
        arrivals = 0
        for cost in (*events, *[None] * 200):
            if cost is not None:
                line.add(arrivals, cost=cost, now=0.0)
                waiting.append(arrivals)
                arrivals += 1
            elif waiting:
                chosen = line.order(0.0)[0]
                line.serve(chosen, 0.0)
                assert line.remove(chosen)
                waiting.remove(chosen)
                for other in waiting:
                    if other < chosen:
                        passed[other] = passed.get(other, 0) + 1
        assert max(passed.values(), default=0) <= PASSES_MAX
        assert not len(line)

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    def test_everybody_served_in_turns_is_served_regularly(self, costs: list[int]) -> None:
        line = line_of(*costs)
        served = [0] * len(costs)
        rounds = 20 * (PASSES_MAX + 1)
        for _ in range(rounds):
            chosen = line.order(0.0)[0]
            line.serve(chosen, 0.0)
            served[chosen] += 1
        # The first to come is passed by others at most so often between two turns.
        assert served[0] >= rounds // (PASSES_MAX + 1) - 1


class TestBatchWindow:
    def test_one_that_comes_alone_is_not_held(self) -> None:
        window = BatchWindow(0.010)
        window.arrived(5.0)
        assert window.wait_s(5.0) == 0
        window.close()
        window.arrived(5.011)
        assert window.wait_s(5.011) == 0

    def test_one_in_company_is_held_for_the_rest_of_the_window(self) -> None:
        window = BatchWindow(0.010)
        window.arrived(5.0)
        window.close()
        window.arrived(5.004)
        assert window.wait_s(5.006) == pytest.approx(0.008)
        window.arrived(5.013)
        assert window.wait_s(5.014) == 0

    @given(st.lists(st.floats(0, 0.02), min_size=1, max_size=50))
    def test_nobody_is_held_longer_than_a_window(self, pauses: list[float]) -> None:
        window, now, held_since = BatchWindow(0.010), 0.0, None
        for pause in pauses:
            if held_since is not None and window.wait_s(now) == 0:
                window.close()
                held_since = None
            now += pause
            window.arrived(now)
            held_since = now if held_since is None else held_since
            assert window.wait_s(now) <= held_since + 0.010 - now + 1e-9 or not window.wait_s(now)

    def test_no_window_holds_nobody(self) -> None:
        window = BatchWindow(0.0)
        for at in (1.0, 1.0, 1.0):
            window.arrived(at)
            assert window.wait_s(at) == 0

    def test_window_can_be_changed_while_somebody_is_held(self) -> None:
        window = BatchWindow(1.0)
        window.arrived(0.0)
        window.close()
        window.arrived(0.5)
        assert window.wait_s(0.5) == 1.0
        window.window_s = 0.1
        assert window.wait_s(0.6) == 0


class TestWaitingRoom:
    def admitted(
        self,
        room: WaitingRoom[str],
        now: float,
        places: int = 8,
        *,
        waits: str = "",
        no_room: str = "",
    ) -> list[str]:
        joined: list[str] = []

        def join(item: str) -> bool:
            if item in no_room:
                return False
            joined.append(item)
            return True

        room.admit(now, places, must_wait=lambda item: item in waits, join=join)
        return joined

    def test_shortest_take_the_places_there_are(self) -> None:
        room: WaitingRoom[str] = WaitingRoom(0)
        for name, cost in (("a", 30), ("b", 10), ("c", 20)):
            room.arrived(name, cost=cost, at=0.0)
        assert self.admitted(room, 0.0, places=2) == ["b", "c"]
        assert len(room) == 1

    def test_nobody_passes_one_for_whom_there_is_no_room(self) -> None:
        room: WaitingRoom[str] = WaitingRoom(0)
        room.arrived("a", cost=1, at=0.0)
        room.arrived("b", cost=2, at=0.0)
        assert self.admitted(room, 0.0, no_room="a") == []
        assert self.admitted(room, 0.0) == ["a", "b"]

    def test_one_that_waits_for_anothers_prompt_lets_others_pass(self) -> None:
        room: WaitingRoom[str] = WaitingRoom(0)
        room.arrived("a", cost=1, at=0.0)
        room.arrived("b", cost=2, at=0.0)
        assert self.admitted(room, 0.0, waits="a") == ["b"]

    def test_those_in_company_join_together_when_the_window_closes(self) -> None:
        room: WaitingRoom[str] = WaitingRoom(0.010)
        room.arrived("a", cost=1, at=0.0)
        assert self.admitted(room, 0.0) == ["a"]
        room.arrived("b", cost=1, at=0.002)
        room.arrived("c", cost=1, at=0.009)
        assert self.admitted(room, 0.009) == []
        assert room.wait_s(0.009) == pytest.approx(0.003)
        assert self.admitted(room, 0.0121) == ["b", "c"]
        assert room.wait_s(0.02) is None

    def test_window_ends_when_there_are_enough_for_all_places(self) -> None:
        room: WaitingRoom[str] = WaitingRoom(10.0)
        room.arrived("a", cost=1, at=0.0)
        room.arrived("b", cost=1, at=0.0)
        assert self.admitted(room, 0.0, places=2) == ["a", "b"]


class TestPrefillPace:
    def pace(self, gap_max_s: float = 0.1) -> PrefillPace:
        return PrefillPace(gap_max_s=gap_max_s, step_tokens=256)

    def test_pieces_are_whole_with_nobody_decoding_or_no_limit(self) -> None:
        assert self.pace().piece_tokens(streams=0) == 256
        assert self.pace(0.0).piece_tokens(streams=3) == 256

    def test_first_piece_beside_a_stream_is_a_small_one(self) -> None:
        assert self.pace().piece_tokens(streams=1) == PIECE_TOKENS_MIN

    @given(st.floats(1e-5, 0.02), st.floats(1e-4, 0.05))
    def test_gap_of_pieces_at_a_steady_pace_stays_under_the_limit(
        self, token_s: float, decode_s: float
    ) -> None:
        pace = self.pace()
        for number in range(50):
            pace.note_decode(decode_s)
            tokens = pace.piece_tokens(streams=1)
            if tokens:
                assert tokens % PIECE_TOKENS_MIN == 0
                if number:
                    gap = tokens * token_s + decode_s
                    assert gap <= 0.1 or tokens == PIECE_TOKENS_MIN
                pace.note_piece(tokens, tokens * token_s)

    def test_piece_shrinks_when_reading_gets_slower(self) -> None:
        pace = self.pace()
        sizes = []
        for token_s in (0.0003, 0.001, 0.001, 0.004, 0.004):
            pace.note_piece(64, 64 * token_s)
            pace.note_decode(1.0)
            pace.note_decode(0.001)
            for _ in range(40):
                pace.note_decode(0.001)
            sizes.append(pace.piece_tokens(streams=2))
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1]

    def test_streams_keep_their_share_of_the_time(self) -> None:
        pace = self.pace()
        pace.note_decode(0.005)
        pace.note_piece(64, 0.080)
        decodes = 0
        while not pace.piece_tokens(streams=1):
            pace.note_decode(0.005)
            decodes += 1
        assert decodes * 0.005 == pytest.approx(DECODE_SHARE * 0.080)
