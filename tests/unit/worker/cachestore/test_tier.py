"""The disk tier: lookups, reads, writes, deletions and pauses of one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.events.cache import CacheBlockRejected, CachePersistencePaused, CachePersistenceResumed
from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import (
    NewBlock,
    StoredBlock,
    StoreEvent,
)
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import FINGERPRINT, make_block, make_chain
from tests.support.polling import scaled, wait_until
from worker.cachestore import tier as tier_module
from worker.cachestore.read_ahead import Continuation
from worker.cachestore.tier import DiskTier, TierState
from worker.cachestore.writer import WriteOutcome, WriteState

WAIT_S = 60.0


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[StoreEvent] = []
        self.tiers: list[DiskTier] = []

    def tier(self) -> DiskTier:
        clock = SystemClock()
        store = BlockStore(
            self.root,
            budget_bytes=1 << 20,
            clock=clock,
            on_event=self.events.append,
            disk=Disk(sync=False),
        )
        self.tiers.append(DiskTier(store, clock=clock, on_event=self.events.append))
        return self.tiers[-1]

    def running(self) -> DiskTier:
        tier = self.tier()
        tier.start()
        assert tier.wait_scanned(WAIT_S)
        return tier

    def filled(self, blocks: list[NewBlock]) -> DiskTier:
        tier = self.running()
        for block in blocks:
            assert tier.write(block) is not None
        assert tier.flush(WAIT_S)
        return tier


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    for tier in world.tiers:
        assert tier.close(WAIT_S)


def test_before_the_scan_nothing_is_known_and_nothing_taken(world: World) -> None:
    (block,) = make_chain(1, 1)
    world.filled([block])
    later = world.tier()
    assert not later.contains(block.hash)
    assert later.write(block) is None
    assert later.children(None, FINGERPRINT) == []
    assert later.state() is TierState.SCANNING
    later.start()
    assert later.wait_scanned(WAIT_S)
    assert later.contains(block.hash)
    assert later.state() is TierState.ON


def test_a_tier_writes_and_reads_within_the_bounds_of_its_owner(world: World) -> None:
    chain = make_chain(1, 3, size_bytes=400)
    early = world.tier()
    assert early.write_state() is WriteState.OFF
    assert early.write(chain[0]) is None
    tier = world.running()
    tier.limit_in_flight(write_bytes=400, read_bytes=400)
    for block in chain:
        assert tier.can_write(block.nbytes)
        written = tier.write(block)
        assert written is not None
        assert written.result(scaled(WAIT_S)) is WriteOutcome.STORED
    assert tier.write_bytes() == 0
    read = tier.read([block.hash for block in chain], FINGERPRINT)
    assert read is not None
    found = []
    while not read.done:
        assert read.wait(scaled(WAIT_S))
        found += [each.meta.hash for each in read.take(1) if isinstance(each, StoredBlock)]
    assert found == [block.hash for block in chain]
    assert tier._read_ahead.held_bytes() == 0


def test_directory_that_can_be_read_again_is_used_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "SCAN_RETRY_S", 0.01)
    world.root.write_text("no directory")
    tier = world.tier()
    tier.start()
    wait_until(lambda: tier.state() is TierState.PAUSED)
    assert not tier.wait_scanned(0)
    assert tier.write_state() is WriteState.PAUSED
    world.root.unlink()
    assert tier.wait_scanned(WAIT_S)
    assert tier.write(make_chain(1, 1)[0]) is not None
    assert tier.flush(WAIT_S)
    assert tier.state() is TierState.ON
    assert tier.write_state() is WriteState.READY
    assert [type(event) for event in world.events] == [
        CachePersistencePaused,
        CachePersistenceResumed,
    ]


def test_block_that_waits_is_held_and_not_taken_twice(world: World) -> None:
    chain = make_chain(1, 3)
    tier = world.filled(chain)
    assert all(tier.holds(block.hash) for block in chain)
    assert tier.stats().stored == 3
    assert not tier.holds(BlockHash(b"x" * 32))


def test_forgotten_blocks_are_gone_from_queue_and_disk(world: World) -> None:
    chain = make_chain(1, 3)
    tier = world.filled(chain)
    names = [block.hash for block in chain[1:]]
    assert tier.forget(names).result(scaled(WAIT_S)) == 2
    assert tier.forget(names).result(scaled(WAIT_S)) == 0
    assert tier.contains(chain[0].hash)
    assert len(list(world.root.rglob("*.kv"))) == 1


def test_rejected_block_is_deleted_and_reported(world: World) -> None:
    chain = make_chain(1, 2)
    tier = world.filled(chain)
    tier.reject(chain[1].hash, "other tensors")
    tier.forget([]).result(scaled(WAIT_S))
    assert not tier.contains(chain[1].hash)
    (event,) = world.events
    assert isinstance(event, CacheBlockRejected)
    assert event.block == chain[1].hash.hex()


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        ((1, 2, 3, 9), 0, (1, 2, 3)),
        ((1, 2, 8), 0, (1, 2, 7)),
        ((1, 2, 3, 9), 3, None),
        ((4, 4), 0, None),
    ],
)
def test_continuation_is_the_block_that_serves_most(
    world: World, wanted: tuple[int, ...], known: int, expected: tuple[int, ...] | None
) -> None:
    tier = world.filled([make_block(ids) for ids in ((1, 2, 7), (1, 2, 3), (5, 6))])
    read = tier.read_continuation(
        Continuation(
            parent=None,
            token_ids=wanted,
            fingerprint=FINGERPRINT,
            known_tokens=known,
        )
    )
    assert read is not None
    assert read.wait(scaled(WAIT_S))
    found = [block.token_ids for block in read.take() if isinstance(block, StoredBlock)]
    read.cancel()
    if expected is None:
        assert found == []
    else:
        assert len(found) == 1
        agreeing = sum(one == other for one, other in zip(found[0], wanted, strict=False))
        assert agreeing == sum(one == other for one, other in zip(expected, wanted, strict=False))
