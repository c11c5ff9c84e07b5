"""What the log holds of a batch, concurrent commands, and pages of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from domain.batch.batches import fill_page
from domain.batch.state import BatchId, BatchState
from domain.errors import BatchNotEnded, BatchNotFound, ConcurrencyConflict, Overloaded, RateLimited
from domain.events.batch import BatchSubmitted
from domain.log.folded_stream import TRIES_MAX
from domain.values import Owner, StreamName
from tests.support.builders.batch_world import BatchWorld
from tests.support.fakes.conflicts import ConflictingAppends


@pytest.fixture
def world() -> Iterator[BatchWorld]:
    with BatchWorld() as world:
        yield world


def types_of(world: BatchWorld, batch_id: BatchId) -> list[str]:
    return [one.type for one in world.log.load(StreamName(batch_id))]


def test_accepted_batch_has_its_id_and_the_request_in_each_event(world: BatchWorld) -> None:
    batch_id = world.submit_batch("one", "two")
    events = world.log.load(StreamName(batch_id))
    assert [one.type for one in events] == ["BatchSubmitted", "BatchStarted"]
    assert {one.correlation_id for one in events} == {"req-1"}
    batch = world.batches.load(batch_id)
    assert (batch.id, batch.version, batch.facts.lines) == (batch_id, 2, 2)


def test_unchecked_batch_waits_for_its_check(world: BatchWorld) -> None:
    batch_id = world.submit_batch("one", is_checked=False)
    assert types_of(world, batch_id) == ["BatchSubmitted"]
    assert world.batches.load(batch_id).state is BatchState.VALIDATING


def test_command_names_its_cause_and_its_request(world: BatchWorld) -> None:
    batch_id = world.submit_batch("one")
    after = world.batches.cancel(batch_id)
    events = world.log.load(StreamName(batch_id))
    assert events[-1].correlation_id == "req-1"
    assert events[-1].causation_id == events[-2].event_id
    assert after == world.batches.load(batch_id)
    assert world.batches.cancel(batch_id) == after
    assert len(types_of(world, batch_id)) == len(events), "it is recorded once"


def test_command_is_decided_again_after_concurrent_appends(world: BatchWorld) -> None:
    batch_id = world.submit_batch("one")
    conflicts = ConflictingAppends(world.log, TRIES_MAX - 1)
    world.batches.cancel(batch_id)
    assert conflicts.tries == TRIES_MAX


def test_writer_that_loops_is_an_error(world: BatchWorld) -> None:
    batch_id = world.submit_batch("one")
    conflicts = ConflictingAppends(world.log, TRIES_MAX)
    with pytest.raises(ConcurrencyConflict):
        world.batches.cancel(batch_id)
    assert conflicts.tries == TRIES_MAX


def test_batch_is_deleted_once_it_has_ended_and_is_then_gone(world: BatchWorld) -> None:
    batch_id = world.submit_batch("one")
    with pytest.raises(BatchNotEnded):
        world.batches.delete(batch_id)
    end(world)
    world.batches.delete(batch_id)
    for call in (world.batches.load, world.batches.cancel, world.batches.delete):
        with pytest.raises(BatchNotFound):
            call(batch_id)
    with pytest.raises(BatchNotFound):
        world.batches.cancel(BatchId("msgbatch_0"))


def test_room_is_for_so_many_open_batches(world: BatchWorld) -> None:
    world.submit_batch("one")
    world.batches.require_room(batches_max=2)
    world.submit_batch("two")
    with pytest.raises(Overloaded, match="2 open batches") as refused:
        world.batches.require_room(batches_max=2)
    assert refused.value.retry_after_s == 60
    end(world)
    world.batches.require_room(batches_max=1)


def test_open_batches_of_one_key_leave_room_for_other_keys(world: BatchWorld) -> None:
    ann, bob = Owner("ann"), Owner("bob")
    for _ in range(2):
        world.batches.require_room(batches_max=4, owner=ann)
        world.submit_batch("one", owner=ann)
    with pytest.raises(RateLimited, match="this key may have 2 of the 4 open batches") as refused:
        world.batches.require_room(batches_max=4, owner=ann)
    assert refused.value.retry_after_s == 60
    world.batches.require_room(batches_max=4, owner=bob)
    world.batches.require_room(batches_max=4)  # of a service with one key
    end(world)
    world.batches.require_room(batches_max=4, owner=ann)


class TestPages:
    """Lists of batches."""

    def test_pages_go_in_both_directions(self, world: BatchWorld) -> None:
        ids = [world.submit_batch("one") for _ in range(5)]

        def page(limit: int, **place: Any) -> tuple[list[int], bool]:
            found = world.batches.page(["anthropic"], limit=limit, **place)
            return [ids.index(one.id) for one in found.rows], found.has_more

        assert page(2) == ([4, 3], True)
        assert page(2, after=ids[3]) == ([2, 1], True)
        assert page(2, after=ids[1]) == ([0], False)
        assert page(5) == ([4, 3, 2, 1, 0], False)
        assert page(2, before=ids[1]) == ([3, 2], True)
        assert page(3, before=ids[1]) == ([4, 3, 2], False)

    def test_others_protocols_and_deleted_batches_are_left_out(self, world: BatchWorld) -> None:
        gone, kept = world.submit_batch("one"), world.submit_batch("two")
        end(world)
        world.batches.delete(gone)
        found = world.batches.page(["openai", "anthropic"], limit=10)
        assert [one.id for one in found.rows] == [kept]
        assert world.batches.page(["openai"], limit=10).rows == ()

    def test_key_sees_its_own(self, world: BatchWorld) -> None:
        own = {
            name: world.submit_batch("one", owner=Owner(name)) for name in ("alice", "bob", "carol")
        }
        for name, batch_id in own.items():
            found = world.batches.page(["anthropic"], limit=10, owner=Owner(name))
            assert [one.id for one in found.rows] == [batch_id]

    def test_no_more_rows_are_loaded_than_a_page_and_one_has(self, world: BatchWorld) -> None:
        for _ in range(5):
            world.submit_batch("one")
        loaded = list[StreamName]()

        def load(stream: StreamName) -> StreamName:
            loaded.append(stream)
            return stream

        found = fill_page(
            BatchSubmitted.__name__,
            load,
            limit=2,
            views=world.views,
            after=None,
            oldest_first=True,
        )
        assert (len(found.rows), found.has_more, len(loaded)) == (2, True, 3)


def end(world: BatchWorld) -> None:
    """Run all lines of all batches to their end."""
    for _ in range(5):
        world.step()
        world.work()
    assert not world.views.unfinished()
