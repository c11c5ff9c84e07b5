"""How many lines become jobs, and when no more do."""

from __future__ import annotations

import pytest

from domain.batch.driver import ROUND_LINES_MAX
from domain.errors import RateLimited
from domain.events.batch import BatchEnded
from domain.job.submit import Accepted, JobSubmission, NewJob
from domain.values import JobId, Owner, Priority
from tests.support.builders.batch_world import DAY_S, BatchWorld
from tests.unit.domain.batch.test_driver import MANY, Crash, crash_after


def reasons(world: BatchWorld) -> list[str]:
    events = world.log.read_all(limit=1000, types=["JobCancelRequested"])
    return [event.data["reason"] for event in events]


@pytest.mark.parametrize("window", [1, ROUND_LINES_MAX, 2 * ROUND_LINES_MAX + 6])
def test_step_submits_as_many_lines_as_the_window_has(window: int) -> None:
    with BatchWorld() as world:
        world.use(window=window)
        batch_id = world.submit_batch(*MANY)
        world.step()
        assert world.views.tally(batch_id).jobs == window


def test_full_queue_takes_no_line_of_another_batch() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        first = world.submit_batch(*MANY)
        world.step()
        second = world.submit_batch("one")
        assert world.step() == 2
        assert world.views.tally(first).jobs == 10
        assert world.views.tally(second).jobs == 0
        world.work(3)
        world.step()
        assert world.log.views.waiting(Priority.BATCH) == {None: 10}
        assert world.views.tally(second).jobs == 1


def test_waiting_jobs_that_are_no_lines_of_a_batch_hold_no_place() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        for _ in range(30):
            world.submit(command={"priority": Priority.BATCH, "owner": Owner("alice")})
        batch_id = world.submit_batch(*MANY, owner=Owner("bob"))
        world.step()
        assert world.views.tally(batch_id).jobs == 10


def test_lines_of_a_model_with_a_line_of_its_own_hold_no_place_of_others() -> None:
    """Such as an embedding model that a worker has."""
    with BatchWorld() as world:
        world.use(window=10, has_own_line=lambda model: model == "night")
        vectors = world.submit_batch(*(f"night {number}" for number in range(30)))
        world.step()
        other = world.submit_batch(*MANY)
        world.step()
        assert world.views.tally(vectors).jobs == world.views.tally(other).jobs == 10


def test_place_that_becomes_free_goes_to_the_batch_with_the_fewest_waiting_lines() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        large = world.submit_batch(*MANY, owner=Owner("alice"))
        world.step()
        small = world.submit_batch("one", "two", owner=Owner("bob"))
        for line in (1, 2):
            world.work(1)
            world.step()
            assert world.views.tally(small).jobs == line
            assert world.views.tally(large).jobs == 10
        world.work(1)
        world.step()
        assert world.views.tally(large).jobs == 11


def test_many_batches_of_one_owner_share_what_one_batch_of_another_has_alone() -> None:
    with BatchWorld() as world:
        world.use(window=12)
        many = [world.submit_batch(*MANY, owner=Owner("alice")) for _ in range(3)]
        alone = world.submit_batch(*MANY, owner=Owner("bob"))
        world.step()
        assert world.views.tally(alone).jobs == 6
        assert [world.views.tally(batch_id).jobs for batch_id in many] == [2, 2, 2]


def test_batch_that_fails_its_check_takes_no_room() -> None:
    with BatchWorld() as world:
        world.use(window=1)
        world.submit_batch("fault", is_checked=False)
        other = world.submit_batch("one")
        assert world.step() == 1
        assert world.views.tally(other).jobs == 1


def test_batch_whose_owner_has_enough_open_jobs_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept = JobSubmission.submit

    def refuse(submission: JobSubmission, command: NewJob, *, job_id: JobId) -> Accepted:
        if command.submitted.owner == "alice":
            raise RateLimited("she has enough open jobs")
        return accept(submission, command, job_id=job_id)

    monkeypatch.setattr(JobSubmission, "submit", refuse)
    with BatchWorld() as world:
        world.use(window=1)
        refused = world.submit_batch("one", owner=Owner("alice"))
        other = world.submit_batch("two", owner=Owner("bob"))
        assert world.step() == 2
        assert world.views.tally(refused).jobs == 0
        assert world.views.tally(other).jobs == 1


def test_lines_that_a_crash_left_behind_are_counted_once() -> None:
    with BatchWorld() as world:
        world.use(window=2 * ROUND_LINES_MAX + 3)
        batch_id = world.submit_batch(*MANY)
        whole = world.driver.spread
        world.use(spread=crash_after(2 * ROUND_LINES_MAX - 1))
        with pytest.raises(Crash):
            world.step()
        world.use(spread=whole)
        world.step()
        assert world.views.tally(batch_id).jobs == 2 * ROUND_LINES_MAX + 3


def test_no_line_becomes_a_job_at_the_end_of_the_window() -> None:
    with BatchWorld() as world:
        world.use(window=2)
        batch_id = world.submit_batch("one", "two", "three")
        world.step()
        world.clock.advance(DAY_S)
        assert world.step() == 0
        assert world.counts(batch_id) == BatchEnded(expired=3)
        assert reasons(world) == ["deadline"] * 2


def test_cancelled_batch_is_the_reason_for_which_its_jobs_end() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "two")
        world.step()
        world.batches.cancel(batch_id)
        world.step()
        assert reasons(world) == ["batch_cancelled"] * 2


def test_batch_whose_lines_were_erased_is_cancelled_and_keeps_its_answers() -> None:
    with BatchWorld() as world:
        world.use(window=1)
        batch_id = world.submit_batch("one", "two")
        world.step()
        world.work()
        world.log.lose_payload(world.batch(batch_id).facts.content)
        assert world.step() == 1
        assert world.batch_types(batch_id)[-1] == "BatchCancelRequested"
        assert world.step() == 0
        assert world.counts(batch_id) == BatchEnded(succeeded=1, canceled=1)


def test_no_line_of_a_held_batch_becomes_a_job_before_its_instant() -> None:
    with BatchWorld() as world:
        held = world.submit_batch("one", "two", start_after="2026-01-01T00:00:05.000000Z")
        now = world.submit_batch("three")
        assert world.step() == 1
        assert world.views.tally(held).jobs == 0
        assert world.views.tally(now).jobs == 1
        world.clock.advance(5)
        assert world.step() == 2
        world.work()
        world.step()
        assert world.counts(held) == BatchEnded(succeeded=2)


def test_a_held_batch_can_be_cancelled() -> None:
    with BatchWorld() as world:
        held = world.submit_batch("one", start_after="2026-01-01T00:00:05.000000Z")
        world.batches.cancel(held)
        world.step()
        assert world.counts(held) == BatchEnded(canceled=1)
