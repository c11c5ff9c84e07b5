"""Room in a queue, and the line in which a job waits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from domain.errors import InvalidRequest, MemoryFull, Overloaded, RateLimited
from domain.job.submit import line_length, require_room
from domain.values import JobId, Owner, Priority
from tests.support.builders.job_world import JobWorld

COUNTS = {None: 4, "day": 2, "night": 1}


class MeasuredEta:
    """A place becomes free after as many seconds as jobs must leave; calls are kept."""

    def __init__(self, full_s: float = 0.0) -> None:
        self.asked: list[tuple[Priority, int, int]] = []
        self._full_s = full_s

    def of(self, job_id: JobId) -> None:
        raise AssertionError(job_id)

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float:
        self.asked.append((priority, waiting, limit))
        return waiting - limit + 8.5

    def full_s(self) -> float:
        return self._full_s


class UnaskedEta(MeasuredEta):
    """Its wait for memory must not be read: in the service that is a call to Redis."""

    def full_s(self) -> float:
        raise AssertionError


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld() as world:
        yield world


def is_night(model: str) -> bool:
    return model == "night"


@pytest.mark.parametrize(("model", "length"), [(None, 6), ("day", 6), ("night", 1), ("unknown", 6)])
def test_line_of_a_job_has_those_that_wait_beside_it(model: str | None, length: int) -> None:
    assert line_length(COUNTS, model, is_night) == length


def test_own_line_of_a_model_is_empty_without_jobs() -> None:
    assert line_length({None: 4}, "night", is_night) == 0


def test_jobs_of_all_models_wait_in_one_line_unless_a_model_has_its_own(world: JobWorld) -> None:
    world.accept(command={"bound_model": "night"})
    eta = MeasuredEta()
    with pytest.raises(Overloaded):
        require_room(Priority.INTERACTIVE, jobs_max=1, views=world.log.views, eta=eta)
    require_room(
        Priority.INTERACTIVE,
        jobs_max=1,
        views=world.log.views,
        eta=eta,
        length_of=partial(line_length, model=None, has_own_line=is_night),
    )
    with pytest.raises(Overloaded):
        require_room(
            Priority.INTERACTIVE,
            jobs_max=1,
            views=world.log.views,
            eta=eta,
            length_of=partial(line_length, model="night", has_own_line=is_night),
        )


def test_more_answers_than_the_queue_takes_are_invalid(world: JobWorld) -> None:
    views, eta = world.log.views, MeasuredEta()
    require_room(Priority.BATCH, jobs_max=3, views=views, eta=eta, jobs=3)
    with pytest.raises(InvalidRequest, match="4 answers at once; the batch queue takes 3") as bad:
        require_room(Priority.BATCH, jobs_max=3, views=views, eta=eta, jobs=4)
    assert bad.value.field == "n"


def test_several_jobs_are_refused_together_where_one_has_no_room(world: JobWorld) -> None:
    world.submit()
    world.submit()
    views, eta = world.log.views, MeasuredEta()
    require_room(Priority.INTERACTIVE, jobs_max=4, views=views, eta=eta, jobs=2)
    with pytest.raises(Overloaded, match="has 2 of 3 jobs, no room for 2") as full:
        require_room(Priority.INTERACTIVE, jobs_max=3, views=views, eta=eta, jobs=2)
    assert eta.asked == [(Priority.INTERACTIVE, 2, 2)]
    assert full.value.retry_after_s == 9


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_full_memory_refuses_until_a_place_of_the_line_is_free(
    world: JobWorld, waiting: int
) -> None:
    for _ in range(waiting):
        world.submit()
    eta = MeasuredEta(full_s=30.0)
    with pytest.raises(MemoryFull, match="waited for it for 30 s") as full:
        require_room(
            Priority.INTERACTIVE, jobs_max=9, views=world.log.views, eta=eta, memory_wait_s=30.0
        )
    assert eta.asked == [(Priority.INTERACTIVE, waiting, max(1, waiting))]
    assert full.value.retry_after_s == (9 if waiting else 8)


def test_memory_that_is_full_for_less_than_the_limit_refuses_nothing(world: JobWorld) -> None:
    for limit_s, full_s in [(30.0, 29.9), (0.5, 0.0), (1.0, 0.9)]:
        require_room(
            Priority.INTERACTIVE,
            jobs_max=1,
            views=world.log.views,
            eta=MeasuredEta(full_s),
            memory_wait_s=limit_s,
        )


def test_limit_of_less_than_a_second_refuses_too(world: JobWorld) -> None:
    with pytest.raises(MemoryFull):
        require_room(
            Priority.INTERACTIVE,
            jobs_max=1,
            views=world.log.views,
            eta=MeasuredEta(0.5),
            memory_wait_s=0.5,
        )


def test_without_a_limit_no_job_is_refused_for_memory(world: JobWorld) -> None:
    views = world.log.views
    require_room(Priority.INTERACTIVE, jobs_max=1, views=views, eta=UnaskedEta())
    require_room(Priority.INTERACTIVE, jobs_max=1, views=views, eta=MeasuredEta(3600.0))


def test_waiting_jobs_of_one_key_leave_room_for_other_keys(world: JobWorld) -> None:
    views, eta = world.log.views, MeasuredEta()
    ann, bob = Owner("ann"), Owner("bob")

    def require(owner: Owner, jobs: int = 1) -> None:
        require_room(Priority.INTERACTIVE, jobs_max=4, views=views, eta=eta, jobs=jobs, owner=owner)

    with pytest.raises(InvalidRequest, match="a key may have 2 jobs in the interactive queue"):
        require(bob, jobs=3)
    for _ in range(2):
        require(ann)
        world.accept(command={"owner": ann})
    message = "this key may have 2 of the 4 waiting jobs of the interactive queue"
    with pytest.raises(RateLimited, match=message) as full:
        require(ann)
    assert full.value.retry_after_s == 9
    require(bob)
