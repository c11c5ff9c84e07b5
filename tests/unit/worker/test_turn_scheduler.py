"""Threads that wait for the turn of their job."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from domain.job.fair_scheduler import TurnOrder, TurnRequest
from domain.values import JobId, JobStatus, Priority
from tests.support.builders.job_world import JobWorld
from tests.support.polling import scaled, wait_until
from worker.turn_scheduler import LANE_SLOTS, TurnScheduler, WaitingTurn

WITHIN_S = 60.0


def gate_of(slots: int) -> TurnScheduler:
    return TurnScheduler(TurnOrder(slots=slots, interactive_reserved=0))


def ask(
    gate: TurnScheduler, number: int, line: str | None = None, *, has_begun: bool = False
) -> WaitingTurn:
    return gate.request_turn(
        TurnRequest(
            id=JobId(f"job-{number}"),
            line=line,
            priority=Priority.INTERACTIVE,
            has_begun=has_begun,
        )
    )


def test_released_slot_is_granted_to_the_next_thread() -> None:
    gate = gate_of(1)
    with ThreadPoolExecutor(1) as pool:
        first, second = ask(gate, 1), ask(gate, 2)
        assert first.wait()
        waiting = pool.submit(second.wait)
        first.release()
        assert waiting.result(scaled(WITHIN_S))
        first.release()
        second.release()
        assert ask(gate, 3).wait()


def test_more_slots_are_granted_at_once_and_fewer_take_none_away() -> None:
    gate = gate_of(1)
    turns = [ask(gate, number) for number in range(4)]
    gate.set_slots(3)
    assert all(turn.wait() for turn in turns[:3])
    gate.set_slots(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(turns[3].wait)
        for turn in turns[:2]:
            turn.release()
        assert gate.state().running == (turns[2].job.id,)
        turns[2].release()
        assert waiting.result(scaled(WITHIN_S))


def test_one_key_leaves_a_slot_of_the_lane_to_the_others() -> None:
    """Requests of 300,000 tokens take half a minute on a small machine, and a search waited."""
    lane = TurnScheduler.of_worker().lane
    assert lane is not None
    for number in range(LANE_SLOTS + 2):
        ask(lane, number, "key=bob")
    turn = ask(lane, 9, "key=ann")
    assert lane.state().running == ("job-0", "job-1", "job-2", "job-9")
    turn.release()
    assert lane.state().running == ("job-0", "job-1", "job-2")


def test_pause_keeps_granted_turns_and_grants_the_others_at_its_end() -> None:
    gate = gate_of(2)
    before = ask(gate, 1)
    gate.set_paused(paused=True)
    assert before.wait()
    first, second = ask(gate, 2), ask(gate, 3)
    before.release()
    first.cancel()
    assert not first.wait()
    assert gate.state().running == ()
    gate.set_paused(paused=False)
    assert second.wait()


def test_job_that_has_begun_goes_on_while_the_others_are_paused() -> None:
    gate = gate_of(2)
    first, second = ask(gate, 1), ask(gate, 2)
    waiting = ask(gate, 3)
    gate.set_paused(paused=True)
    new = ask(gate, 4)
    begun = ask(gate, 5, has_begun=True)
    first.release()
    second.release()
    assert begun.wait()
    assert gate.state().running == (begun.job.id,)
    begun.release()
    gate.set_paused(paused=True)
    gate.set_paused(paused=False)
    gate.set_paused(paused=False)
    assert waiting.wait()
    assert new.wait()


def test_pause_does_not_keep_a_worker_from_its_end() -> None:
    gate = gate_of(1)
    gate.set_paused(paused=True)
    waiting = ask(gate, 1)
    gate.close()
    assert not waiting.wait()


def test_cancelled_wait_ends_without_a_slot() -> None:
    gate = gate_of(1)
    with ThreadPoolExecutor(1) as pool:
        first, second = ask(gate, 1), ask(gate, 2)
        waiting = pool.submit(second.wait)
        second.cancel()
        assert not waiting.result(scaled(WITHIN_S))
        third = ask(gate, 3)
        first.release()
    assert third.wait()


def test_cancel_keeps_a_granted_turn() -> None:
    turn = ask(gate_of(1), 1)
    turn.cancel()
    assert turn.wait()


def test_closing_refuses_all_waiting_turns() -> None:
    gate = gate_of(1)
    with ThreadPoolExecutor(1) as pool:
        assert ask(gate, 1).wait()
        waiting = pool.submit(ask(gate, 2).wait)
        gate.close()
        assert not waiting.result(scaled(WITHIN_S))
        assert not ask(gate, 3).wait()


def test_job_cancelled_while_it_waits_for_its_turn_never_starts() -> None:
    with JobWorld({"hi": "Hello."}, slots=1) as world:
        world.engine.pause()
        first, second = world.submit(), world.submit()
        threads = [threading.Thread(target=world.run, args=(one,)) for one in (first, second)]
        threads[0].start()
        wait_until(lambda: world.job(first).attempt > 0)
        threads[1].start()
        wait_until(lambda: second in world.active.jobs())
        world.broker.queue.take()
        world.broker.queue.take()
        world.cancel(second)
        world.nudge(second)
        threads[1].join(scaled(WITHIN_S))
        assert world.job(second).status is JobStatus.CANCELLED
        assert "AttemptStarted" not in world.types(second)
        world.engine.resume()
        threads[0].join(scaled(WITHIN_S))
        assert world.job(first).status is JobStatus.COMPLETED


def test_worker_that_drains_leaves_waiting_jobs_to_the_next_one() -> None:
    with JobWorld({"hi": "Hello."}) as world:
        job_id = world.submit()
        world.turns.close()
        world.run(job_id)
        assert world.job(job_id).status is JobStatus.QUEUED
        world.runner = world.new_worker("worker-2")
        world.run(job_id)
        assert world.job(job_id).status is JobStatus.COMPLETED
