"""Loads return blocks in order, within bounds, up to the first useless block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import NewBlock, PutOutcome, Rejected, StoredBlock
from ops.blockstore.store import BlockStore
from tests.support.builders.blocks import FINGERPRINT, FailingDisk, make_block, make_chain
from tests.support.fakes.time import FakeClock
from worker.cachestore.loader import BlockLoader, LoaderLimits

WAIT_S = 60.0


class HeldStore(BlockStore):
    """A store that reads only when the test lets it."""

    gate: threading.Event
    entered: threading.Event

    def get(self, block_hash: BlockHash, fingerprint: str) -> StoredBlock | Rejected | None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return super().get(block_hash, fingerprint)


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = HeldStore(root, budget_bytes=1 << 20, clock=FakeClock(), disk=FailingDisk())
        self.store.gate, self.store.entered = threading.Event(), threading.Event()
        self.store.gate.set()
        self.store.scan()
        self.loader = self.loader_with(LoaderLimits())

    def loader_with(self, limits: LoaderLimits) -> BlockLoader:
        self.loader = BlockLoader(self.store, limits=limits)
        return self.loader

    def load(self, chain: list[NewBlock]) -> list[StoredBlock | Rejected | None]:
        future = self.loader.load([block.hash for block in chain], FINGERPRINT)
        assert future is not None
        return future.result(WAIT_S)

    def file_of(self, block: NewBlock) -> Path:
        return next(self.root.rglob(f"{block.hash.hex()}*"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.gate.set()
    world.loader.close(WAIT_S)


def _kinds(found: list[StoredBlock | Rejected | None]) -> list[str]:
    return [type(each).__name__ for each in found]


def test_a_context_comes_back_in_its_order(world: World) -> None:
    chain = make_chain(1, 5)
    world.store.put_many(chain)
    world.loader.start()
    found = world.load(chain)
    assert [each.meta.hash for each in found if isinstance(each, StoredBlock)] == [
        block.hash for block in chain
    ]
    assert world.store.stats().pinned == 0


def test_reading_stops_at_the_first_gap(world: World) -> None:
    chain = make_chain(1, 5)
    world.store.put_many(chain)
    world.file_of(chain[2]).unlink()
    world.loader.start()
    found = world.load(chain)
    assert _kinds(found) == ["StoredBlock", "StoredBlock", "NoneType", "NoneType", "NoneType"]
    assert world.store.stats().hits == 2


def test_reading_stops_at_a_damaged_block(world: World) -> None:
    chain = make_chain(1, 3)
    world.store.put_many(chain)
    world.file_of(chain[1]).write_bytes(b"junk")
    world.loader.start()
    assert _kinds(world.load(chain)) == ["StoredBlock", "Rejected", "NoneType"]


def test_a_load_is_bounded_in_bytes(world: World) -> None:
    chain = make_chain(1, 4, size_bytes=400)
    world.store.put_many(chain)
    world.loader_with(LoaderLimits(load_bytes=800)).start()
    assert _kinds(world.load(chain)) == ["StoredBlock", "StoredBlock", "NoneType", "NoneType"]
    assert _kinds(world.load(chain[2:])) == ["StoredBlock", "StoredBlock"]


def test_too_many_loads_are_refused_at_once(world: World) -> None:
    block = make_block()
    world.store.put(block)
    loader = world.loader_with(LoaderLimits(loads=2))
    loader.start()
    world.store.gate.clear()
    futures = [loader.load([block.hash], FINGERPRINT) for _ in range(3)]
    assert [future is None for future in futures] == [False, False, True]
    world.store.gate.set()
    for future in futures[:2]:
        assert future is not None
        assert _kinds(future.result(WAIT_S)) == ["StoredBlock"]


def test_blocks_of_a_waiting_load_are_not_evicted(tmp_path: Path) -> None:
    world = World(tmp_path)
    chain = make_chain(1, 2, size_bytes=400)
    world.store.put_many(chain)
    size_bytes = world.store.stats().size_bytes
    world.store = HeldStore(
        tmp_path, budget_bytes=size_bytes, clock=FakeClock(), disk=FailingDisk()
    )
    world.store.gate, world.store.entered = threading.Event(), threading.Event()
    world.store.scan()
    loader = world.loader_with(LoaderLimits())
    loader.start()
    future = loader.load([block.hash for block in chain], FINGERPRINT)
    assert future is not None
    assert world.store.entered.wait(WAIT_S)
    assert world.store.put(make_block((9,))) is PutOutcome.NO_ROOM
    world.store.gate.set()
    assert _kinds(future.result(WAIT_S)) == ["StoredBlock", "StoredBlock"]
    assert loader.close(WAIT_S)
    assert world.store.put(make_block((9,))) is PutOutcome.STORED


def test_a_load_that_was_cancelled_is_not_read(world: World) -> None:
    chain = make_chain(1, 2)
    world.store.put_many(chain)
    world.loader.start()
    world.store.gate.clear()
    first = world.loader.load([chain[0].hash], FINGERPRINT)
    second = world.loader.load([chain[1].hash], FINGERPRINT)
    assert first is not None
    assert second is not None
    assert world.store.entered.wait(WAIT_S)
    assert second.cancel()
    world.store.gate.set()
    first.result(WAIT_S)
    assert world.loader.close(WAIT_S)
    assert world.store.stats().hits == 1
    assert world.store.stats().pinned == 0


def test_closing_cancels_what_waits(world: World) -> None:
    block = make_block()
    world.store.put(block)
    future = world.loader.load([block.hash], FINGERPRINT)
    assert future is not None
    assert world.loader.close(WAIT_S)
    assert future.cancelled()
    assert world.loader.load([block.hash], FINGERPRINT) is None
    assert world.store.stats().pinned == 0


def test_error_reaches_the_waiting_caller_and_the_next_load_works(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = make_block()
    world.store.put(block)
    world.loader.start()
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "get", lambda *_: 1 / 0)
        future = world.loader.load([block.hash], FINGERPRINT)
        assert future is not None
        with pytest.raises(ZeroDivisionError):
            future.result(WAIT_S)
    assert _kinds(world.load([block])) == ["StoredBlock"]
