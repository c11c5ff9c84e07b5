"""The contexts of an agent: which are listed, who shares their blocks, and what is deleted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from domain.agent.contexts import (
    ALL_EVENTS_MAX,
    CONTEXTS_MAX,
    OWN_EVENTS_MAX,
    AgentContexts,
    MappedBlock,
    MappedContext,
)
from domain.errors import ConcurrencyConflict, QueueUnavailable
from domain.events.agent import AgentDeleted, AgentForgotten, AgentRegistered
from domain.events.cache import AgentCacheEvicted, AgentCacheRestored, AgentCacheSaved
from domain.events.event import Event
from domain.kv.hashing import BlockHash
from domain.kv.places import NAMES_MAX
from domain.log.folded_stream import TRIES_MAX
from domain.values import AgentId, JobId, Owner, StreamName, WorkerId, digest_of
from tests.support.builders.job_events import submitted, worker_event
from tests.support.builders.told_log import ToldLog, second
from tests.support.fakes.broker import FakeBlockPlaces
from tests.support.fakes.outage import Outage
from tests.support.fakes.time import SequentialIds

ANN, BOB, EVE = AgentId("ann"), AgentId("bob"), AgentId("eve")
W1, W2 = WorkerId("worker-1"), WorkerId("worker-2")
EVICTED = AgentCacheEvicted(agent=ANN, blocks=1, reason="operator")
FORGOTTEN = AgentForgotten(agent=ANN, jobs=1, payloads=2, payload_bytes=3, shared=0)
RESTORED = AgentCacheRestored(
    job=JobId("job-1"), source="ram", tokens=5, disk_tokens=0, prompt_tokens=9, took_ms=1.0
)


class World:
    """A log of saved contexts and workers that hold blocks."""

    def __init__(self) -> None:
        self.log = ToldLog()
        self.outage = Outage()
        self.places = FakeBlockPlaces(self.outage)
        self.contexts = AgentContexts(log=self.log, places=self.places, ids=SequentialIds())

    def tell(self, agent: str, *events: Event) -> None:
        self.log.tell(f"agent-{agent}", *events)

    def hold(self, worker: WorkerId, *, disk: Iterable[int], memory: Iterable[int] = ()) -> None:
        self.places.memory[worker] = {_block(number) for number in memory}
        self.places.disk[worker] = {_block(number) for number in disk}

    def read(self, owner: Owner | None = None) -> tuple[MappedContext, ...]:
        return self.contexts.read(ANN, owner)

    def listed(self) -> list[list[int]]:
        return [[int(block.name, 16) for block in one.blocks] for one in self.read()]

    def shared(self, owner: Owner | None = None) -> list[set[AgentId]]:
        (context,) = self.read(owner)
        return [set(block.agents) for block in context.blocks]

    def forget(self) -> int:
        return self.contexts.forget(ANN, correlation_id="req-1")


def _types(world: World) -> list[str]:
    return [one.type for one in world.log.load(StreamName("agent-ann"))]


def _block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32))


def _saved(
    *blocks: int,
    tail: int | None = None,
    tokens: int | None = None,
    checkpoints: tuple[int, ...] = (),
) -> AgentCacheSaved:
    return AgentCacheSaved(
        job=JobId("job-1"),
        fingerprint="f",
        blocks=tuple(_block(number).hex() for number in blocks),
        tail=None if tail is None else _block(tail).hex(),
        tokens=256 * len(blocks) + 7 if tokens is None else tokens,
        checkpoints=tuple(_block(number).hex() for number in checkpoints),
    )


def test_a_context_has_its_blocks_in_order_and_the_tail_last() -> None:
    world = World()
    event = _saved(1, 2, tail=3)
    world.tell("ann", event)
    world.tell("bob", _saved(1))
    world.hold(W1, memory={1}, disk={1, 3})
    places = [(1, 256, True, True), (2, 256, False, False), (3, 7, False, True)]
    assert world.read() == (
        MappedContext(
            saved=event,
            at=second(0),
            blocks=tuple(
                MappedBlock(
                    name=_block(number).hex(),
                    tokens=tokens,
                    agents=frozenset({BOB} if number == 1 else ()),
                    in_memory=in_memory,
                    on_disk=on_disk,
                )
                for number, tokens, in_memory, on_disk in places
            ),
        ),
    )


def test_a_block_is_where_any_worker_has_it() -> None:
    world = World()
    world.tell("ann", _saved(1, 2, 3))
    world.hold(W1, memory={1}, disk={2})
    world.hold(W2, memory={2}, disk={3})
    (context,) = world.read()
    assert [block.in_memory for block in context.blocks] == [True, True, False]
    assert [block.on_disk for block in context.blocks] == [False, True, True]


def test_without_a_worker_the_place_of_the_blocks_is_unknown() -> None:
    world = World()
    world.tell("ann", _saved(1))
    (context,) = world.read()
    assert [(block.in_memory, block.on_disk) for block in context.blocks] == [(None, None)]


def test_a_broker_that_is_away_is_named() -> None:
    world = World()
    world.tell("ann", _saved(1))
    world.outage.down = True
    with pytest.raises(QueueUnavailable):
        world.read()


def test_the_tail_has_the_tokens_after_the_whole_blocks() -> None:
    lengths = []
    for tokens in (500, 512, 513, 767):
        world = World()
        world.tell("ann", _saved(1, 2, tail=3, tokens=tokens))
        lengths.append(world.read()[0].blocks[-1].tokens)
    assert lengths == [0, 0, 1, 255]


def test_the_context_saved_last_comes_first_and_beginnings_are_left_out() -> None:
    world = World()
    world.tell("ann", _saved(1, 2), _saved(1, 5), _saved(1, 2, 3), RESTORED, _saved(tail=8))
    assert world.listed() == [[8], [1, 2, 3], [1, 5]]
    assert [context.at for context in world.read()] == [second(4), second(2), second(1)]


def test_a_context_that_was_saved_again_is_listed_once() -> None:
    world = World()
    world.tell("ann", _saved(1, 2), _saved(3), _saved(1, 2))
    assert world.listed() == [[1, 2], [3]]


def test_an_empty_context_is_not_listed() -> None:
    world = World()
    world.tell("ann", _saved(1), _saved())
    assert world.listed() == [[1]]


def test_an_agent_without_contexts_has_none() -> None:
    world = World()
    world.tell("bob", _saved(1))
    world.hold(W1, disk={1})
    assert world.read() == ()


@pytest.mark.parametrize("end", [EVICTED, FORGOTTEN, AgentDeleted(agent=ANN)])
def test_contexts_before_a_deletion_do_not_count(end: Event) -> None:
    world = World()
    world.tell("ann", _saved(1), end)
    assert world.listed() == []
    world.tell("ann", _saved(2))
    assert world.listed() == [[2]]


def test_the_latest_contexts_are_listed() -> None:
    world = World()
    world.tell("ann", *(_saved(number) for number in range(1, CONTEXTS_MAX + 2)))
    assert world.listed() == [[number] for number in range(CONTEXTS_MAX + 1, 1, -1)]


def test_contexts_are_sought_among_the_latest_saves() -> None:
    world = World()
    again = [_saved(2)] * (OWN_EVENTS_MAX - 1)
    world.tell("ann", _saved(1), *again)
    assert world.listed() == [[2], [1]]
    world.tell("ann", _saved(2))
    assert world.listed() == [[2]]


def test_agents_share_whole_blocks_tails_and_checkpoints() -> None:
    world = World()
    world.tell("ann", _saved(1, 2, 3, tail=4))
    world.tell("bob", _saved(1, 2, tail=4))
    world.tell("eve", _saved(1, checkpoints=(3,)))
    world.log.tell("worker-1", worker_event())
    assert world.shared() == [{BOB, EVE}, {BOB}, {EVE}, {BOB}]


def test_other_agents_are_named_only_if_they_have_the_same_owner() -> None:
    world = World()
    for name, owner in (("bob", "alice"), ("eve", "carol")):
        agent = AgentId(name)
        created = AgentRegistered(agent=agent, profile=digest_of(b""), owner=Owner(owner))
        world.tell(name, created, _saved(1))
    world.tell("ann", _saved(1))
    assert world.shared(Owner("alice")) == [{BOB}]
    assert world.shared(Owner("nobody")) == [set()]
    assert world.shared() == [{BOB, EVE}]


def test_sharing_is_sought_among_the_latest_saves_of_all() -> None:
    world = World()
    world.tell("bob", _saved(1))
    world.tell("ann", *[_saved(1)] * (ALL_EVENTS_MAX - 1))
    assert world.shared() == [{BOB}]
    world.tell("ann", _saved(1))
    assert world.shared() == [set()]


def test_places_are_known_of_as_many_blocks_as_one_request_names() -> None:
    world = World()
    numbers = range(1, NAMES_MAX + 2)
    world.tell("ann", _saved(*numbers))
    world.hold(W1, disk=numbers)
    (context,) = world.read()
    assert [block.on_disk for block in context.blocks] == [True] * NAMES_MAX + [None]


def test_only_blocks_that_no_other_agent_has_are_deleted() -> None:
    world = World()
    world.tell("ann", _saved(1, 2, tail=3, checkpoints=(4, 5)), _saved(1, 6))
    world.tell("bob", _saved(1, checkpoints=(5,)))
    world.hold(W1, memory={1, 2, 7}, disk={3, 4, 5})
    world.hold(W2, disk={6, 7})
    assert world.forget() == 4
    assert world.places.memory == {W1: {_block(1), _block(7)}, W2: set()}
    assert world.places.disk == {W1: {_block(5)}, W2: {_block(7)}}


def test_a_deletion_is_recorded_once() -> None:
    world = World()
    world.tell("ann", _saved(1, 2, tail=3), RESTORED)
    world.log.tell("job-1", submitted(agent="ann"))
    assert world.forget() == 3
    *_, recorded = world.log.load(StreamName("agent-ann"))
    assert (recorded.version, recorded.type) == (3, "AgentCacheEvicted")
    assert recorded.data == {"agent": "ann", "blocks": 3, "reason": "operator"}
    assert (recorded.correlation_id, recorded.event_id) == ("req-1", f"{1:032x}")
    assert world.listed() == []
    assert world.forget() == 0
    assert world.log.head().position == recorded.position


def test_nothing_is_recorded_where_all_blocks_are_shared_or_there_are_none() -> None:
    world = World()
    assert world.forget() == 0
    world.tell("bob", _saved(1))
    world.tell("ann", _saved(1))
    world.hold(W1, disk={1})
    assert world.forget() == 0
    assert world.places.disk == {W1: {_block(1)}}
    assert world.log.head().position == 2


def test_as_many_blocks_are_deleted_as_one_request_names() -> None:
    world = World()
    world.tell("ann", _saved(*range(1, NAMES_MAX + 2)))
    assert world.forget() == NAMES_MAX


def test_nothing_is_recorded_while_the_broker_is_away() -> None:
    world = World()
    world.tell("ann", _saved(1))
    world.outage.down = True
    with pytest.raises(QueueUnavailable):
        world.forget()
    assert _types(world) == ["AgentCacheSaved"]


def test_a_deletion_is_recorded_after_the_events_of_other_writers() -> None:
    world = World()
    world.tell("ann", _saved(1))
    world.log.rivals = [("agent-ann", RESTORED)] * (TRIES_MAX - 1)
    assert world.forget() == 1
    assert _types(world)[-1] == "AgentCacheEvicted"


def test_a_deletion_gives_up_when_every_try_is_overtaken() -> None:
    world = World()
    world.tell("ann", _saved(1))
    world.log.rivals = [("agent-ann", RESTORED)] * (TRIES_MAX + 2)
    with pytest.raises(ConcurrencyConflict):
        world.forget()
    assert len(world.log.rivals) == 2
