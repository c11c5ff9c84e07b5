"""Scheduling: cheapest first without starvation, batch window."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.values import WaitingFor
from worker.engine.scheduling.waiting_queue import (
    PASSES_MAX,
    RETRY_S,
    WAIT_S_MAX,
    BatchRoom,
    BatchWindow,
    FairQueue,
    WaitingQueue,
)

FOREVER = math.inf


def queue_of(*costs: int, wait_s_max: float = FOREVER) -> FairQueue[int]:
    """Return a queue whose items are numbered in order of arrival."""
    queue: FairQueue[int] = FairQueue(wait_s_max=wait_s_max)
    for name, cost in enumerate(costs):
        queue.add(name, cost=cost, now=0.0)
    return queue


def order_of(queue: FairQueue[int], now: float) -> list[int]:
    return [turn.item for turn in queue.turns(now)]


class TestFairQueue:
    def test_cheapest_is_first_and_equal_costs_in_order_of_arrival(self) -> None:
        assert order_of(queue_of(5, 1, 3, 1), 0.0) == [1, 3, 2, 0]

    def test_item_that_waited_long_enough_precedes_cheaper_ones(self) -> None:
        queue = queue_of(9, wait_s_max=WAIT_S_MAX)
        queue.add(1, cost=1, now=WAIT_S_MAX / 2)
        assert order_of(queue, WAIT_S_MAX - 0.001) == [1, 0]
        assert order_of(queue, WAIT_S_MAX) == [0, 1]

    def test_item_that_is_due_at_once_precedes_cheaper_ones_and_no_earlier_due_one(self) -> None:
        queue = queue_of(5, 1, wait_s_max=WAIT_S_MAX)
        queue.add(2, cost=9, now=WAIT_S_MAX / 2, is_due=True)
        queue.add(3, cost=0, now=WAIT_S_MAX / 2, is_due=True, rank=1)
        assert order_of(queue, WAIT_S_MAX / 2) == [2, 1, 0, 3]
        assert order_of(queue, WAIT_S_MAX) == [0, 1, 2, 3]

    def test_item_put_back_precedes_all_others(self) -> None:
        queue = queue_of(1, 2)
        queue.put_back(7)
        queue.put_back(8)
        assert order_of(queue, 0.0) == [8, 7, 0, 1]
        queue.record_served(8, 0.0)
        queue.remove(8)
        assert queue.clear() == [7, 0, 1]
        assert not len(queue)

    def test_lower_rank_is_first_and_time_changes_only_the_order_within_a_rank(self) -> None:
        queue = queue_of(9, wait_s_max=WAIT_S_MAX)
        queue.add(1, cost=5, now=0.0, rank=1)
        queue.add(2, cost=1, now=0.0, rank=1)
        queue.put_back(3, rank=1)
        assert order_of(queue, 0.0) == [0, 3, 2, 1]
        queue.add(4, cost=1, now=WAIT_S_MAX)
        assert order_of(queue, WAIT_S_MAX) == [0, 4, 3, 1, 2]
        assert [turn.is_due for turn in queue.turns(WAIT_S_MAX)] == [True, False, True, True, True]

    def test_item_of_a_higher_rank_is_passed_as_often_as_others(self) -> None:
        queue: FairQueue[int] = FairQueue(wait_s_max=FOREVER)
        queue.put_back(-1, rank=1)
        for name in range(2 * PASSES_MAX):
            queue.add(name, cost=1, now=0.0)
            chosen = order_of(queue, 0.0)[0]
            assert (chosen == -1) == (name == PASSES_MAX)
            queue.record_served(chosen, 0.0)
            queue.remove(chosen)

    def test_blocked_item_is_not_passed(self) -> None:
        queue = queue_of(9)
        for name in range(1, 3 * PASSES_MAX):
            queue.add(name, cost=1, now=0.0)
            queue.record_served(name, 0.0, blocked=[0])
            queue.remove(name)
        queue.add(99, cost=1, now=0.0)
        assert order_of(queue, 0.0) == [99, 0]

    def test_second_removal_does_nothing(self) -> None:
        queue = queue_of(1, 2)
        queue.remove(0)
        queue.remove(0)
        assert order_of(queue, 0.0) == [1]

    @given(st.lists(st.one_of(st.none(), st.integers(1, 100)), max_size=200))
    def test_no_item_is_passed_more_often_than_the_bound(self, events: list[int | None]) -> None:
        """A number is an arrival of that cost; ``None`` serves the first item of the order."""
        queue: FairQueue[int] = FairQueue(wait_s_max=FOREVER)
        waiting: list[int] = []
        passed: dict[int, int] = {}
        arrivals = 0
        for cost in (*events, *[None] * 200):
            if cost is not None:
                queue.add(arrivals, cost=cost, now=0.0)
                waiting.append(arrivals)
                arrivals += 1
            elif waiting:
                chosen = order_of(queue, 0.0)[0]
                queue.record_served(chosen, 0.0)
                queue.remove(chosen)
                waiting.remove(chosen)
                for other in waiting:
                    if other < chosen:
                        passed[other] = passed.get(other, 0) + 1
        assert max(passed.values(), default=0) <= PASSES_MAX
        assert not len(queue)

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    def test_each_item_that_needs_several_turns_is_served_regularly(self, costs: list[int]) -> None:
        queue = queue_of(*costs)
        served = [0] * len(costs)
        rounds = 20 * (PASSES_MAX + 1)
        for _ in range(rounds):
            chosen = order_of(queue, 0.0)[0]
            queue.record_served(chosen, 0.0)
            served[chosen] += 1
        # Later arrivals pass the first item at most ``PASSES_MAX`` times between two of its turns.
        assert served[0] >= rounds // (PASSES_MAX + 1) - 1


class TestBatchWindow:
    def test_lone_arrival_is_not_delayed(self) -> None:
        window = BatchWindow(0.010)
        window.record_arrival(5.0)
        assert window.wait_s(5.0) == 0
        window.close()
        window.record_arrival(5.011)
        assert window.wait_s(5.011) == 0

    def test_arrival_after_another_waits_for_the_rest_of_the_window(self) -> None:
        window = BatchWindow(0.010)
        window.record_arrival(5.0)
        window.close()
        window.record_arrival(5.004)
        assert window.wait_s(5.006) == pytest.approx(0.008)
        window.record_arrival(5.013)
        assert window.wait_s(5.014) == 0

    @pytest.mark.parametrize("later_s", [0.0, 0.004])
    def test_arrivals_before_the_first_has_joined_wait_too(self, later_s: float) -> None:
        window = BatchWindow(0.010)
        window.record_arrival(5.0)
        window.record_arrival(5.0 + later_s)
        assert window.wait_s(5.004) == pytest.approx(0.006)

    @given(st.lists(st.floats(0, 0.02), min_size=1, max_size=50))
    def test_no_arrival_waits_longer_than_a_window(self, pauses: list[float]) -> None:
        window, now, waits_since = BatchWindow(0.010), 0.0, None
        for pause in pauses:
            if waits_since is not None and window.wait_s(now) == 0:
                window.close()
                waits_since = None
            now += pause
            window.record_arrival(now)
            waits_since = now if waits_since is None else waits_since
            assert window.wait_s(now) <= waits_since + 0.010 - now + 1e-9 or not window.wait_s(now)

    def test_window_of_zero_delays_no_arrival(self) -> None:
        window = BatchWindow(0.0)
        for at in (1.0, 1.0, 1.0):
            window.record_arrival(at)
            assert window.wait_s(at) == 0

    def test_window_can_be_changed_while_an_arrival_waits(self) -> None:
        window = BatchWindow(1.0)
        window.record_arrival(0.0)
        window.close()
        window.record_arrival(0.5)
        assert window.wait_s(0.5) == 1.0
        window.window_s = 0.1
        assert window.wait_s(0.6) == 0


class Batch:
    """A batch with a number of places and an amount of memory; each item needs its size.

    Attributes:
        waits: Items whose blocks are being computed.
        joined: The items in the batch, in the order in which they joined.
        refused: The items that found no memory, in the order in which they were tried.
    """

    def __init__(self, *, places: int = 8, memory: int = 1000) -> None:
        self.places, self.memory = places, memory
        self.sizes: dict[str, int] = {}
        self.waits: set[str] = set()
        self.joined: list[str] = []
        self.refused: list[str] = []

    def has_place(self, item: str) -> bool:
        del item
        return len(self.joined) < self.places

    def must_wait(self, item: str) -> WaitingFor | None:
        return WaitingFor.PREFIX if item in self.waits else None

    def join(self, item: str) -> bool:
        used = sum(self.sizes.get(one, 1) for one in self.joined)
        if used + self.sizes.get(item, 1) > self.memory:
            self.refused.append(item)
            return False
        self.joined.append(item)
        return True

    def admit(self, waiting: WaitingQueue[str], now: float = 0.0) -> list[str]:
        """Return the items that joined."""
        before = len(self.joined)
        room = BatchRoom(
            has_place=self.has_place,
            must_wait=self.must_wait,
            join=lambda turn: self.join(turn.item),
        )
        waiting.admit(now, self.places - before, room)
        return self.joined[before:]


def waiting_for(*costs: tuple[str, int]) -> WaitingQueue[str]:
    """Return a queue without a window, whose items arrived in this order."""
    waiting: WaitingQueue[str] = WaitingQueue(0)
    for name, cost in costs:
        waiting.add(name, cost=cost, now=0.0)
    return waiting


class TestWaitingQueue:
    def test_cheapest_items_take_the_free_places(self) -> None:
        waiting = waiting_for(("a", 30), ("b", 10), ("c", 20))
        assert Batch(places=2).admit(waiting) == ["b", "c"]
        assert waiting.reasons == {"a": WaitingFor.PLACE}

    def test_items_can_change_their_cost(self) -> None:
        waiting = waiting_for(("a", 30), ("b", 10))
        waiting.set_costs({"a": 1, "b": 2}.__getitem__)
        assert Batch(places=1).admit(waiting) == ["a"]

    def test_item_that_fits_overtakes_one_that_does_not_until_that_is_due(self) -> None:
        waiting, batch = waiting_for(("big", 1)), Batch(memory=4)
        batch.sizes["big"] = 4
        batch.joined.append("old")
        for name in (f"small-{n}" for n in range(PASSES_MAX)):
            waiting.add(name, cost=2, now=0.0)
            assert batch.admit(waiting) == [name]
            batch.joined.remove(name)
            assert waiting.reasons == {"big": WaitingFor.MEMORY}
        waiting.add("late", cost=0, now=0.0)
        assert batch.admit(waiting) == []
        assert waiting.reasons == {"big": WaitingFor.MEMORY, "late": WaitingFor.MEMORY}
        batch.joined.clear()
        assert batch.admit(waiting) == ["big"]
        batch.joined.clear()
        assert batch.admit(waiting) == ["late"]

    def test_item_that_waited_long_lets_the_batch_drain(self) -> None:
        waiting, batch = waiting_for(("big", 1)), Batch(memory=4)
        batch.sizes["big"] = 4
        batch.joined.append("old")
        waiting.add("small", cost=2, now=WAIT_S_MAX)
        assert batch.admit(waiting, WAIT_S_MAX) == []

    def test_batch_item_does_not_take_the_memory_that_an_interactive_one_waits_for(self) -> None:
        waiting, batch = waiting_for(("big", 1)), Batch(memory=4)
        batch.sizes["big"] = 4
        batch.joined.append("old")
        waiting.add("batch", cost=0, now=0.0, rank=1)
        waiting.add("small", cost=9, now=0.0)
        assert batch.admit(waiting) == ["small"]
        assert list(waiting.reasons) == ["big", "batch"]

    def test_few_items_are_tried_in_one_attempt(self) -> None:
        waiting, batch = waiting_for(*((str(n), n) for n in range(9))), Batch(memory=0)
        assert batch.admit(waiting) == []
        assert batch.refused == ["0", "1", "2"]
        assert set(waiting.reasons.values()) == {WaitingFor.MEMORY}

    def test_later_items_overtake_one_that_must_wait(self) -> None:
        waiting, batch = waiting_for(("a", 1), ("b", 2)), Batch()
        batch.waits.add("a")
        assert batch.admit(waiting) == ["b"]
        assert waiting.reasons == {"a": WaitingFor.PREFIX}
        assert waiting.wait_s(0.0) == RETRY_S

    def test_arrivals_in_a_window_join_together_when_it_closes(self) -> None:
        waiting: WaitingQueue[str] = WaitingQueue(0.010)
        batch = Batch()
        waiting.add("a", cost=1, now=0.0)
        assert batch.admit(waiting) == ["a"]
        waiting.add("b", cost=1, now=0.002)
        waiting.add("c", cost=1, now=0.009)
        assert batch.admit(waiting, 0.009) == []
        assert waiting.wait_s(0.009) == pytest.approx(0.003)
        assert batch.admit(waiting, 0.0121) == ["b", "c"]
        assert waiting.wait_s(0.02) is None

    def test_window_closes_when_the_waiting_items_fill_the_batch(self) -> None:
        waiting: WaitingQueue[str] = WaitingQueue(10.0)
        waiting.add("a", cost=1, now=0.0)
        waiting.add("b", cost=1, now=0.0)
        assert Batch(places=2).admit(waiting) == ["a", "b"]

    @given(
        st.lists(
            st.tuples(
                st.integers(1, 4),
                st.integers(0, 100),
                st.sampled_from((0, 0, 1)),
                st.booleans(),
                st.booleans(),
            ),
            min_size=1,
            max_size=40,
        )
    )
    def test_every_item_joins_after_a_bounded_number_of_others(
        self, arrivals: list[tuple[int, int, int, bool, bool]]
    ) -> None:
        """Items of several sizes arrive and leave at random; costs change all the time."""
        waiting: WaitingQueue[str] = WaitingQueue(0)
        batch = Batch(places=3, memory=4)
        #: Of each waiting item: how many later arrivals joined.
        passed: dict[str, int] = {}
        for number, (size, cost, rank, reprices, leaves) in enumerate(arrivals):
            name = str(number)
            batch.sizes[name], passed[name] = size, 0
            waiting.add(name, cost=cost, now=0.0, rank=rank)
            if reprices:
                waiting.set_costs(lambda item: -batch.sizes[item])
            if leaves and batch.joined:
                batch.joined.pop(0)
            self._count(batch.admit(waiting), passed)
        while len(waiting):
            assert batch.joined, "nothing runs, and nothing joins"
            batch.joined.pop(0)
            self._count(batch.admit(waiting), passed)
            assert len(waiting.reasons) == len(waiting)
        assert not passed

    def _count(self, joined: list[str], passed: dict[str, int]) -> None:
        for name in joined:
            del passed[name]
            for other in [other for other in passed if int(other) < int(name)]:
                passed[other] += 1
                assert passed[other] <= PASSES_MAX
