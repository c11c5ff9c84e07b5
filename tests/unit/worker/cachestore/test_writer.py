"""Submitted blocks reach the disk or are counted as dropped, and no caller waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from domain.events.cache import CachePersistencePaused, CachePersistenceResumed
from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import (
    NewBlock,
    PutOutcome,
    StoreEvent,
)
from ops.blockstore.store import NO_WORKER, BlockStore
from tests.support.builders.blocks import (
    FINGERPRINT,
    OTHER_FINGERPRINT,
    FailingDisk,
    make_block,
    make_chain,
)
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled
from worker.cachestore.reports import Manifest, sealed
from worker.cachestore.writer import WriteBehind, WriteOutcome, WriterLimits, WriteState

WAIT_S = 60.0


class HeldStore(BlockStore):
    """A store whose disk hangs until the test releases it."""

    gate: threading.Event
    entered: threading.Event

    def put_many(self, blocks: Sequence[NewBlock]) -> list[PutOutcome]:
        self.entered.set()
        assert self.gate.wait(scaled(WAIT_S))
        return super().put_many(blocks)


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.disk = FailingDisk()
        self.events: list[StoreEvent] = []
        self.store = HeldStore(root, budget_bytes=1 << 20, clock=self.clock, disk=self.disk)
        self.store.gate, self.store.entered = threading.Event(), threading.Event()
        self.store.gate.set()
        self.store.scan()
        self.writer = self.writer_with(WriterLimits())

    def writer_with(self, limits: WriterLimits) -> WriteBehind:
        self.writer = WriteBehind(
            self.store, clock=self.clock, on_event=self.events.append, limits=limits
        )
        return self.writer

    def hold(self) -> None:
        """Make the writing thread hang with one block in its hands."""
        self.store.gate.clear()
        assert self.writer.write(make_block((1000,))) is not None
        assert self.store.entered.wait(scaled(WAIT_S))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.gate.set()
    world.writer.close(WAIT_S)


def test_what_was_submitted_is_on_disk_after_a_flush(world: World) -> None:
    chain = make_chain(1, 40)
    world.writer.start()
    assert all(world.writer.write(block) is not None for block in chain)
    assert world.writer.flush(WAIT_S)
    assert all(world.store.contains(block.hash) for block in chain)
    assert world.writer.stats().queued == world.writer.in_flight_bytes() == 0


def test_closing_writes_what_waits(world: World) -> None:
    chain = make_chain(1, 40)
    for block in chain:
        world.writer.write(block)
    world.writer.start()
    assert world.writer.close(WAIT_S)
    assert all(world.store.contains(block.hash) for block in chain)
    assert world.writer.write(make_block((7,))) is None


def test_an_abandoned_queue_is_not_written(world: World) -> None:
    chain = make_chain(1, 5)
    world.writer.start()
    world.hold()
    for block in chain:
        assert world.writer.write(block) is not None
    world.writer.abandon()
    world.store.gate.set()
    assert world.writer.close(WAIT_S)
    assert not any(world.store.contains(block.hash) for block in chain)
    assert world.writer.write(make_block((7,))) is None


def test_a_writer_that_never_started_closes() -> None:
    store = BlockStore(Path("/nonexistent"), budget_bytes=0, clock=FakeClock())
    assert WriteBehind(store, clock=FakeClock()).close(WAIT_S)


def test_a_full_queue_refuses_while_the_disk_hangs(world: World) -> None:
    writer = world.writer_with(WriterLimits(queue_blocks=3))
    writer.start()
    world.hold()
    taken = [writer.write(block) is not None for block in make_chain(1, 5)]
    assert taken == [True, True, True, False, False]
    assert writer.stats().dropped == 0
    assert not writer.flush(0.01)
    world.store.gate.set()
    assert writer.flush(WAIT_S)
    assert world.events == []


def test_the_queue_is_bounded_in_bytes_too(world: World) -> None:
    chain = make_chain(1, 3, size_bytes=400)
    writer = world.writer_with(WriterLimits(queue_bytes=900))
    assert [writer.write(block) is not None for block in chain] == [True, True, False]
    writer.start()


def test_a_refused_write_is_no_drop_and_is_accepted_later(world: World) -> None:
    chain = make_chain(1, 3, size_bytes=400)
    size = chain[0].nbytes
    writer = world.writer_with(WriterLimits(queue_bytes=900))
    assert writer.state(size) is WriteState.READY
    first = [writer.write(block) for block in chain]
    assert [written is not None for written in first] == [True, True, False]
    assert writer.state(size) is WriteState.BUSY
    assert writer.in_flight_bytes() == 2 * size
    writer.start()
    assert writer.flush(WAIT_S)
    assert writer.in_flight_bytes() == 0
    written = writer.write(chain[2])
    assert written is not None
    assert written.result(scaled(WAIT_S)) is WriteOutcome.STORED
    assert writer.stats().dropped == 0


def test_the_owner_sets_the_bound_and_one_block_of_any_size_is_accepted(world: World) -> None:
    big, small = make_block((1,), size_bytes=4000), make_block((2,))
    world.writer.limit_bytes(10)
    assert world.writer.write(big) is not None
    assert world.writer.state(small.nbytes) is WriteState.BUSY
    world.writer.limit_bytes(5000)
    assert world.writer.write(small) is not None
    world.writer.start()


def test_a_block_in_flight_is_not_enqueued_again(world: World) -> None:
    block = make_block()
    assert world.writer.write(block) is world.writer.write(block)
    assert world.writer.stats().queued == 1
    world.writer.start()


def test_blocks_without_tensors_are_bounded_in_number(world: World) -> None:
    chain = [replace(block, payload={}) for block in make_chain(1, 3)]
    writer = world.writer_with(WriterLimits(queue_blocks=2, queue_bytes=0))
    assert [writer.write(block) is not None for block in chain] == [True, True, False]
    assert writer.in_flight_bytes() == 0
    writer.start()
    assert writer.flush(WAIT_S)
    assert all(world.store.contains(block.hash) for block in chain[:2])


def test_a_full_store_is_tried_again_after_a_pause(world: World) -> None:
    first, second = make_block((1,), size_bytes=4000), make_block((2,), size_bytes=4000)
    world.store = HeldStore(
        world.root / "small", budget_bytes=6000, clock=world.clock, disk=world.disk
    )
    world.store.gate, world.store.entered = threading.Event(), threading.Event()
    world.store.gate.set()
    writer = world.writer_with(WriterLimits())
    writer.start()
    assert writer.write(first) is not None
    assert writer.flush(WAIT_S)
    world.store.pin([first.hash])
    refused = writer.write(second)
    assert refused is not None
    assert refused.result(scaled(WAIT_S)) is WriteOutcome.NO_ROOM
    assert writer.state() is WriteState.FULL
    assert writer.write(second) is None
    assert writer.stats().dropped == 1
    assert not writer.stats().paused
    world.store.unpin([first.hash])
    world.clock.advance(WriterLimits().retry_min_s)
    assert writer.state() is WriteState.READY
    again = writer.write(second)
    assert again is not None
    assert again.result(scaled(WAIT_S)) is WriteOutcome.STORED
    assert writer.state() is WriteState.READY


def test_each_block_has_its_outcome_when_the_disk_fails(world: World) -> None:
    chain = make_chain(1, 3)
    writer = world.writer_with(WriterLimits(group_blocks=1))
    writer.start()
    world.hold()
    futures = [writer.write(block) for block in chain]
    world.disk.writes_left = 1
    world.store.gate.set()
    outcomes = [future.result(scaled(WAIT_S)) for future in futures if future is not None]
    assert outcomes == [WriteOutcome.FAILED] * 3
    assert writer.state() is WriteState.PAUSED
    assert writer.in_flight_bytes() == 0


def test_a_deleted_block_is_forgotten_and_no_read_waits_for_it(world: World) -> None:
    (block,) = make_chain(1, 1)
    written = world.writer.write(block)
    stored = world.writer.when_written([block.hash])
    deleted = world.writer.forget([block.hash])
    world.writer.start()
    assert deleted.result(scaled(WAIT_S)) == 1
    assert written is not None
    assert written.result(scaled(WAIT_S)) is WriteOutcome.FORGOTTEN
    assert stored.result(scaled(WAIT_S)) == frozenset()
    assert world.writer.flush(WAIT_S)
    assert world.writer.stats().dropped == 0


def test_abandoned_blocks_fail_and_are_not_written(world: World) -> None:
    block = make_block()
    written = world.writer.write(block)
    world.writer.abandon()
    world.writer.start()
    assert written is not None
    assert written.result(scaled(WAIT_S)) is WriteOutcome.FAILED
    assert world.writer.in_flight_bytes() == 0
    assert world.writer.close(WAIT_S)
    assert not world.store.contains(block.hash)


def test_a_closed_writer_accepts_nothing(world: World) -> None:
    world.writer.start()
    assert world.writer.close(WAIT_S)
    assert world.writer.state() is WriteState.OFF
    assert world.writer.write(make_block()) is None


def test_a_full_disk_pauses_once_and_resumes_by_itself(world: World) -> None:
    world.writer.start()
    world.disk.writes_left = 0
    assert world.writer.write(make_block((1,))) is not None
    assert world.writer.flush(WAIT_S)
    (paused,) = world.events
    assert isinstance(paused, CachePersistencePaused)
    assert (paused.error, paused.retry_s) == ("ENOSPC", 5.0)
    assert world.writer.write(make_block((2,))) is None
    assert world.writer.stats().paused

    # Still full at the first retry: no second event, a longer pause.
    world.clock.advance(5.0)
    assert world.writer.write(make_block((3,))) is not None
    assert world.writer.flush(WAIT_S)
    world.clock.advance(9.0)
    assert world.writer.write(make_block((4,))) is None
    assert world.events == [paused]

    world.disk.writes_left = None
    world.clock.advance(1.0)
    assert world.writer.write(make_block((5,))) is not None
    assert world.writer.flush(WAIT_S)
    assert world.events[1:] == [CachePersistenceResumed(worker=NO_WORKER, paused_s=15.0, dropped=2)]
    assert world.store.contains(make_block((5,)).hash)
    assert not world.writer.stats().paused


def test_the_pause_grows_up_to_its_limit(world: World) -> None:
    writer = world.writer_with(WriterLimits(retry_min_s=1.0, retry_max_s=3.0))
    writer.start()
    world.disk.writes_left = 0
    for pause_s in (1.0, 2.0, 3.0, 3.0):
        assert writer.write(make_block((1,))) is not None
        assert writer.flush(WAIT_S)
        world.clock.advance(pause_s - 0.5)
        assert writer.write(make_block((1,))) is None
        world.clock.advance(0.5)


def test_a_failure_drops_what_waits_and_frees_its_memory(world: World) -> None:
    writer = world.writer_with(WriterLimits(group_blocks=1))
    writer.start()
    world.hold()
    chain = make_chain(1, 4)
    for block in chain:
        writer.write(block)
    future = writer.when_written([block.hash for block in chain])
    world.disk.writes_left = 0
    world.store.gate.set()
    assert future.result(scaled(WAIT_S)) == frozenset()
    assert writer.stats().dropped == 5
    assert writer.in_flight_bytes() == 0


def test_unexpected_error_ends_neither_the_thread_nor_later_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.writer.start()
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "put_many", lambda _: 1 / 0)
        world.writer.write(make_block((1,)))
        assert world.writer.flush(WAIT_S)
    assert isinstance(world.events[0], CachePersistencePaused)
    assert world.events[0].error == "ZeroDivisionError"
    world.clock.advance(5.0)
    assert world.writer.write(make_block((2,))) is not None
    assert world.writer.flush(WAIT_S)
    assert world.store.contains(make_block((2,)).hash)


# --- manifests -----------------------------------------------------------------------------


def _manifest(chain: Sequence[NewBlock], tail: NewBlock | None = None) -> Manifest:
    return Manifest(
        fingerprint=FINGERPRINT,
        blocks=tuple(block.hash for block in chain),
        tail=tail.hash if tail else None,
    )


def test_a_manifest_is_sealed_only_when_its_blocks_are_on_disk(world: World) -> None:
    chain = make_chain(1, 3)
    tail = make_block((9,), parent=chain[-1].hash)
    world.writer.start()
    world.hold()
    for block in (*chain, tail):
        assert world.writer.write(block) is not None
    future = sealed(world.writer, _manifest(chain, tail))
    assert not future.done()
    world.store.gate.set()
    assert future.result(scaled(WAIT_S)) == _manifest(chain, tail)
    assert all(world.store.contains(block.hash) for block in (*chain, tail))


def test_a_manifest_is_cut_where_a_block_was_dropped(world: World) -> None:
    chain = make_chain(1, 4)
    world.writer.start()
    for block in (chain[0], chain[1], chain[3]):
        world.writer.write(block)
    assert sealed(world.writer, _manifest(chain)).result(scaled(WAIT_S)) == _manifest(chain[:2])


def test_a_tail_counts_only_after_all_blocks_before_it() -> None:
    chain = make_chain(1, 2)
    tail = make_block((9,), parent=chain[-1].hash)
    whole = _manifest(chain, tail)
    stored: list[BlockHash] = [chain[0].hash, tail.hash]
    assert whole.cut(stored) == _manifest(chain[:1])
    assert whole.cut([*stored, chain[1].hash]) == whole
    assert whole.cut([]) == _manifest([])


def test_stored_checkpoints_stay_named_wherever_the_blocks_end() -> None:
    chain = make_chain(1, 2)
    checkpoints = [make_block((at,), fingerprint=OTHER_FINGERPRINT).hash for at in range(3)]
    whole = replace(_manifest(chain), checkpoints=tuple(checkpoints))
    assert set(checkpoints) < set(whole.hashes)
    stored = [chain[0].hash, checkpoints[0], checkpoints[2]]
    cut = whole.cut(stored)
    assert cut.blocks == (chain[0].hash,)
    assert cut.checkpoints == (checkpoints[0], checkpoints[2])
