"""The order of turns: no queue starves, agents keep their order, interactive jobs their slots."""

from __future__ import annotations

import re
from collections import defaultdict
from copy import deepcopy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from api.http.bodies import KNOWN_NAME_PATTERN
from domain.engine.workers import AgentQueueState, TurnState
from domain.job.fair_scheduler import BATCH_EVERY, Suspicion, TurnOrder, TurnRequest, line_of
from domain.values import JobId, Priority

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH
AGENTS = ("a", "b", "c", None)


def job(number: int) -> JobId:
    return JobId(f"job-{number:04d}")


def drained(order: TurnOrder) -> list[JobId]:
    """Run every waiting job, one after the other."""
    ran = []
    while (next_job := order.next()) is not None:
        ran.append(next_job)
        order.release(next_job)
    return ran


def test_one_job_of_an_agent_does_not_wait_for_a_hundred_of_another() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    for number in range(100):
        order.add(TurnRequest(id=job(number), line="busy", priority=INTERACTIVE))
    started = [order.next()]
    order.release(job(0))
    order.add(TurnRequest(id=job(500), line="late", priority=INTERACTIVE))
    started += drained(order)
    assert started.index(job(500)) <= 2
    busy = [one for one in started if one != job(500)]
    assert busy == [job(number) for number in range(100)]


def test_jobs_without_an_agent_wait_for_one_job_of_another_key_and_not_for_all() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    for number in range(20):
        order.add(TurnRequest(id=job(number), line=line_of(None, "loud"), priority=INTERACTIVE))
    order.add(TurnRequest(id=job(20), line=line_of(None, "quiet"), priority=INTERACTIVE))
    assert drained(order).index(job(20)) == 1


def test_line_is_that_of_the_agent_else_of_the_key() -> None:
    assert line_of("a", "mine") == line_of("a", None) == "a"
    assert line_of(None, None) is None
    name = line_of(None, "mine")
    assert name == "key=mine"
    assert not re.fullmatch(KNOWN_NAME_PATTERN, name), "an agent could have the name"


def test_jobs_of_an_agent_start_as_accepted_whatever_order_they_come_in() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    for number in (3, 1, 2):
        order.add(TurnRequest(id=job(number), line="a", priority=INTERACTIVE))
    assert drained(order) == [job(1), job(2), job(3)]


def test_urgent_jobs_of_an_agent_start_first_and_take_no_turn_of_another() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    for number, urgency in ((0, 0), (1, 5), (2, 9), (3, 5)):
        order.add(TurnRequest(id=job(number), line="a", priority=INTERACTIVE, urgency=urgency))
    for number in (4, 5):
        order.add(TurnRequest(id=job(number), line="b", priority=INTERACTIVE))
    assert drained(order) == [job(number) for number in (2, 4, 1, 5, 3, 0)]


def test_what_has_begun_goes_before_the_turns_of_its_queue() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    for number, line in enumerate("abcab"):
        order.add(TurnRequest(id=job(number), line=line, priority=INTERACTIVE, urgency=1))
    for number, priority in ((6, INTERACTIVE), (5, INTERACTIVE), (7, BATCH)):
        order.add(TurnRequest(id=job(number), line="b", priority=priority, has_begun=True))
    assert drained(order) == [job(number) for number in (5, 6, 0, 2, 1, 3, 4, 7)]


def test_a_line_takes_no_more_than_its_slots_and_jobs_without_a_line_take_all() -> None:
    order = TurnOrder(slots=3, interactive_reserved=0, line_slots=2)
    for number in range(3):
        order.add(TurnRequest(id=job(number), line="a", priority=INTERACTIVE))
    order.add(TurnRequest(id=job(3), line="a", priority=BATCH))
    assert [order.next() for _ in range(3)] == [job(0), job(1), None]
    order.add(TurnRequest(id=job(4), line="b", priority=BATCH))
    assert order.next() == job(4)
    order.release(job(0))
    assert order.next() == job(2)
    order = TurnOrder(slots=3, interactive_reserved=0, line_slots=2)
    for number in range(3):
        order.add(TurnRequest(id=job(number), line=None, priority=INTERACTIVE))
    assert [order.next() for _ in range(3)] == [job(0), job(1), job(2)]


def test_batch_jobs_leave_the_reserved_slots_alone() -> None:
    order = TurnOrder(slots=4, interactive_reserved=2)
    for number in range(9):
        order.add(TurnRequest(id=job(number), line=None, priority=BATCH))
    assert [order.next() for _ in range(3)] == [job(0), job(1), None]
    order.add(TurnRequest(id=job(10), line=None, priority=INTERACTIVE))
    assert order.next() == job(10)


def test_reserve_larger_than_the_slots_leaves_one_to_batch_jobs() -> None:
    order = TurnOrder(slots=2, interactive_reserved=5)
    order.add(TurnRequest(id=job(1), line=None, priority=BATCH))
    assert order.next() == job(1)


def test_batch_jobs_move_beside_endless_interactive_ones() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    order.add(TurnRequest(id=job(0), line=None, priority=BATCH))
    for number in range(1, 50):
        order.add(TurnRequest(id=job(number), line=None, priority=INTERACTIVE))
    assert drained(order).index(job(0)) == BATCH_EVERY - 1


def test_job_taken_out_never_gets_a_turn() -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    order.add(TurnRequest(id=job(1), line="a", priority=INTERACTIVE))
    order.add(TurnRequest(id=job(2), line="a", priority=INTERACTIVE))
    order.remove(job(1))
    order.remove(job(9))
    assert drained(order) == [job(2)]


def suspects(*numbers: int, suspicion: Suspicion = Suspicion.TRIED) -> TurnOrder:
    order = TurnOrder(slots=3, interactive_reserved=1)
    order.add(TurnRequest(id=job(1), line="a", priority=INTERACTIVE))
    for number in numbers:
        order.add(TurnRequest(id=job(number), line=None, priority=INTERACTIVE, suspicion=suspicion))
    return order


def test_suspects_start_one_at_a_time_the_newest_first() -> None:
    order = suspects(2, 3)
    assert (order.next(), order.next()) == (job(3), None)
    order.clear(job(3))
    assert (order.next(), order.next()) == (job(2), None)
    order.release(job(2))
    assert order.next() == job(1)
    assert (order.state().running, order.waiting) == ((job(3), job(1)), 0)


def test_suspects_of_several_deaths_do_not_run_beside_each_other() -> None:
    order = suspects(2, 3, suspicion=Suspicion.APART)
    assert order.next() == job(3)
    order.clear(job(3))
    assert (order.next(), order.next()) == (job(1), None)
    order.release(job(3))
    assert order.next() == job(2)


def test_suspect_that_gives_up_does_not_start() -> None:
    order = suspects(2)
    order.remove(job(2))
    assert (order.next(), order.waiting) == (job(1), 0)


def test_suspects_of_batches_leave_the_reserved_slots_free() -> None:
    order = TurnOrder(slots=2, interactive_reserved=1)
    for number in (1, 2):
        order.add(TurnRequest(id=job(number), line=None, priority=BATCH, suspicion=Suspicion.TRIED))
    assert order.next() == job(2)
    order.clear(job(2))
    assert order.next() is None


def test_order_that_continues_another_one_keeps_the_turns_of_its_agents() -> None:
    first = TurnOrder(slots=1, interactive_reserved=0)
    for number, agent in enumerate(["a", "a", "b", "b", None]):
        first.add(TurnRequest(id=job(number), line=agent, priority=INTERACTIVE))
    assert [first.next(), first.next()] == [job(0), None]
    first.release(job(0))
    assert first.next() == job(2), "it is the turn of the next agent"
    assert first.state() == TurnState(
        slots=1,
        interactive_reserved=0,
        running=(job(2),),
        lines=(
            AgentQueueState(priority=INTERACTIVE, agent="a", turns_ago=1),
            AgentQueueState(priority=INTERACTIVE, agent="b", turns_ago=0),
            AgentQueueState(priority=INTERACTIVE, agent="", turns_ago=2),
        ),
    )
    after = TurnOrder.like(first.state())
    for number, agent in ((1, "a"), (3, "b"), (4, None)):
        after.add(TurnRequest(id=job(number), line=agent, priority=INTERACTIVE))
    assert drained(after) == [job(4), job(1), job(3)]


def test_order_that_continues_another_one_counts_the_turns_of_batch_jobs_on() -> None:
    first = TurnOrder(slots=1, interactive_reserved=0)
    first.add(TurnRequest(id=job(0), line=None, priority=BATCH))
    for number in range(1, BATCH_EVERY + 3):
        first.add(TurnRequest(id=job(number), line=None, priority=INTERACTIVE))
    for _ in range(BATCH_EVERY - 1):
        ran = first.next()
        assert ran is not None
        first.release(ran)
    assert first.state().passed_batch == BATCH_EVERY - 1
    after = TurnOrder.like(first.state())
    after.add(TurnRequest(id=job(0), line=None, priority=BATCH))
    after.add(TurnRequest(id=job(BATCH_EVERY), line=None, priority=INTERACTIVE))
    assert after.next() == job(0)
    assert after.state().passed_batch == 0


def test_reserve_is_kept_also_where_it_is_below_none() -> None:
    assert TurnOrder(slots=2, interactive_reserved=-1).state().interactive_reserved == 0
    order = TurnOrder(slots=1, interactive_reserved=0)
    order.occupy(job(1), BATCH)
    order.add(TurnRequest(id=job(2), line=None, priority=BATCH))
    assert order.next() is None
    order.release(job(1))
    order.release(job(1))
    assert order.next() == job(2)


class Turns(RuleBasedStateMachine):
    """Jobs come, also begun ones, start, end and give up in any order, and the slots change."""

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.reserved = 3, 1
        self.order = TurnOrder(slots=self.slots, interactive_reserved=self.reserved)
        self.count = 0
        self.waiting: dict[JobId, tuple[Priority, str | None]] = {}
        self.begun: set[JobId] = set()
        self.running: dict[JobId, Priority] = {}
        #: Turns that others of its queue had since a job came to the head of its agent's line.
        self.passed: dict[JobId, int] = defaultdict(int)

    @rule(agent=st.sampled_from(AGENTS), priority=st.sampled_from(Priority), begun=st.booleans())
    def accept(self, agent: str | None, priority: Priority, *, begun: bool) -> None:
        self.count += 1
        name = job(self.count)
        self.order.add(TurnRequest(id=name, line=agent, priority=priority, has_begun=begun))
        self.waiting[name] = (priority, agent)
        if begun:
            self.begun.add(name)

    @rule()
    def start(self) -> None:
        started = self.order.next()
        if started is None:
            return
        priority, agent = self.waiting.pop(started)
        self.running[started] = priority
        in_batch = sum(one is BATCH for one in self.running.values())
        assert len(self.running) <= self.slots
        assert priority is INTERACTIVE or in_batch <= max(1, self.slots - self.reserved)
        if started in self.begun:
            return
        ahead = [
            one for one in self.begun & self.waiting.keys() if self.waiting[one][0] is priority
        ]
        assert not ahead, "a job that has begun was passed"
        mine = [one for one, facts in self.waiting.items() if facts == (priority, agent)]
        assert all(started < one for one in mine), "an earlier job of the agent was passed"
        for one, (queue, whose) in self.waiting.items():
            earlier = [other for other, facts in self.waiting.items() if facts == (queue, whose)]
            if queue is priority and one == min(earlier) and whose != agent:
                self.passed[one] += 1
                # Each other agent passes the head of a line once, and once more if it came with it.
                assert self.passed[one] <= 2 * len(AGENTS), f"{one} starves"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[ended]
        self.order.release(ended)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[gone]
        self.order.remove(gone)

    @rule(slots=st.integers(1, 5))
    def resize(self, slots: int) -> None:
        self.slots = slots
        self.order.set_slots(slots)

    @invariant()
    def slots_are_kept(self) -> None:
        assert set(self.order.state().running) == set(self.running)
        assert self.order.waiting == len(self.waiting)

    @invariant()
    def no_slot_stays_free_while_an_interactive_job_waits(self) -> None:
        if len(self.running) < self.slots:
            wanted = any(priority is INTERACTIVE for priority, _ in self.waiting.values())
            assert not wanted or deepcopy(self.order).next() is not None


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase
