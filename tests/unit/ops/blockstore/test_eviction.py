"""The cap holds at every instant, and what goes first is what is least missed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.events.cache import CacheBlocksEvicted
from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import (
    NewBlock,
    PutOutcome,
    StoredBlock,
    StoreEvent,
    ignore,
)
from ops.blockstore.disk import Disk
from ops.blockstore.format import encode
from ops.blockstore.maintenance import overview
from ops.blockstore.store import BlockStore
from tests.support.builders.blocks import FINGERPRINT, make_block, make_chain, make_checkpoint
from tests.support.fakes.time import FakeClock

CLOCK = FakeClock()


def _size(block: NewBlock) -> int:
    return sum(len(bytes(part)) for part in encode(block))


def _on_disk(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


class WatchedDisk(Disk):
    """Looks at the directory after each file that is written."""

    def __init__(self, root: Path) -> None:
        super().__init__(sync=False)
        self.root = root
        self.most_bytes = 0

    def write_draft(self, path: Path, buffers: Sequence[bytes | memoryview]) -> None:
        super().write_draft(path, buffers)
        self.most_bytes = max(self.most_bytes, _on_disk(self.root))


def _store(
    root: Path, budget_bytes: int, events: list[StoreEvent] | None = None, disk: Disk | None = None
) -> BlockStore:
    CLOCK.advance(1)
    store = BlockStore(
        root,
        budget_bytes=budget_bytes,
        clock=CLOCK,
        on_event=ignore if events is None else events.append,
        disk=disk or Disk(sync=False),
    )
    store.scan()
    return store


STEPS = ["put", "put", "checkpoint", "checkpoint", "touch", "pin", "pin end", "unpin", "delete"]
operations = st.lists(
    st.tuples(st.sampled_from([*STEPS, "restart"]), st.integers(0, 2), st.integers(1, 3)),
    max_size=25,
)


class Model:
    """A store under a cap, and the blocks that must be there.

    Contexts of even numbers have blocks without tensors, as networks with states alone do.
    """

    def __init__(self, root: Path, budget_bytes: int) -> None:
        self.root, self.budget_bytes = root, budget_bytes
        self.disk = WatchedDisk(root)
        self.store = _store(root, budget_bytes, disk=self.disk)
        self.checkpoint = make_checkpoint([])
        self.pinned: list[NewBlock] = []
        self.deleted: set[BlockHash] = set()

    def context(self, number: int, length: int) -> list[NewBlock]:
        chain = make_chain(number, length)
        return chain if number % 2 else [replace(block, payload={}) for block in chain]

    def apply(self, step: str, number: int, length: int) -> None:
        chain = self.context(number, length)
        there = [block for block in self.pinned if self.store.contains(block.hash)]
        match step:
            case "put":
                self.store.put_many(chain)
            case "checkpoint":
                self.checkpoint = make_checkpoint(chain, size_bytes=256)
                self.store.put_many([*chain, self.checkpoint])
            case "touch":
                self.store.touch([block.hash for block in (*chain, make_checkpoint(chain))])
            case "pin":
                self.pin(chain)
            case "pin end":
                self.pin([self.checkpoint])
            case "unpin":
                self.store.unpin([block.hash for block in self.pinned])
                self.pinned = []
            case "delete":
                self.store.delete(chain[-1].hash)
                self.deleted.add(chain[-1].hash)
            case _:
                self.store = _store(self.root, self.budget_bytes, disk=self.disk)
                self.pinned, there = [], []
        gone = self.deleted
        assert all(self.store.contains(one.hash) for one in there if one.hash not in gone)

    def pin(self, blocks: list[NewBlock]) -> None:
        self.store.pin([block.hash for block in blocks])
        self.pinned += blocks

    def check(self) -> None:
        assert self.disk.most_bytes <= self.budget_bytes
        assert self.store.stats().size_bytes == _on_disk(self.root) <= self.budget_bytes
        parents = {block.hash: block.parent for block in self.store.blocks()}
        for orphan in overview(self.root).orphans:
            at: BlockHash | None = orphan.hash
            while at in parents:
                at = parents[at]
            assert at in self.deleted, "a block was evicted before one that builds on it"


@given(operations, st.sampled_from([0, 700, 1500, 2000, 2500, 4000]))
@settings(max_examples=80, deadline=None)
def test_the_cap_holds_whatever_is_done_and_ends_go_first(
    steps: list[tuple[str, int, int]], budget_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        model = Model(Path(name), budget_bytes)
        for step in steps:
            CLOCK.advance(1)
            model.apply(*step)
            model.check()


@pytest.fixture
def chains() -> tuple[list[NewBlock], list[NewBlock]]:
    return make_chain(1, 3), make_chain(2, 3)


def test_the_least_recently_used_context_goes_first(
    tmp_path: Path, chains: tuple[list[NewBlock], list[NewBlock]]
) -> None:
    old, young = chains
    events: list[StoreEvent] = []
    budget_bytes = 6 * _size(old[-1])
    store = _store(tmp_path, budget_bytes, events)
    store.put_many(old)
    store.put_many(young)
    store.touch([block.hash for block in old])
    extra = make_block((9,))
    assert store.put_many([extra])[0] is PutOutcome.STORED
    # Its last block: nothing builds on it.
    assert not store.contains(young[-1].hash)
    assert all(store.contains(block.hash) for block in (*old, *young[:-1]))
    (event,) = events
    assert isinstance(event, CacheBlocksEvicted)
    assert (event.blocks, event.size_bytes) == (1, _size(young[-1]))


def test_no_block_goes_before_those_that_build_on_it(tmp_path: Path) -> None:
    chain = make_chain(1, 5)
    store = _store(tmp_path, 5 * _size(chain[-1]))
    store.put_many(chain)
    for gone in range(1, 5):
        store.put_many([make_block((100 + gone,))])
        assert [store.contains(block.hash) for block in chain] == [at < 5 - gone for at in range(5)]
    assert overview(tmp_path).orphans == []


def test_a_checkpoint_keeps_the_blocks_before_it(tmp_path: Path) -> None:
    chain = make_chain(1, 3)
    checkpoint = make_checkpoint(chain)
    size = _size(checkpoint)
    store = _store(tmp_path, 4 * size)
    store.put_many([*chain, checkpoint])
    store.pin([checkpoint.hash])
    assert store.put_many([make_block((9,))])[0] is PutOutcome.NO_ROOM
    store.unpin([checkpoint.hash])
    assert store.put_many([make_block((9,))])[0] is PutOutcome.STORED
    assert not store.contains(checkpoint.hash)
    assert all(store.contains(block.hash) for block in chain)


def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    old, young = make_chain(1, 3), make_chain(2, 3)
    size_bytes = _size(old[-1])
    store = _store(tmp_path, 6 * size_bytes)
    for chain in (old, young):
        CLOCK.advance(1)
        store.put_many(chain)
    CLOCK.advance(1)
    store.touch([block.hash for block in old])
    before = [block.hash for block in store.blocks()]
    store = _store(tmp_path, 6 * size_bytes)
    after = [block.hash for block in store.blocks()]
    assert before[3:] == after[3:] == [block.hash for block in reversed(old)]
    assert before[:3] == after[:3] == [block.hash for block in reversed(young)]


def test_a_lower_cap_holds_from_the_start(tmp_path: Path) -> None:
    chain = make_chain(1, 5)
    _store(tmp_path, 1 << 20).put_many(chain)
    store = _store(tmp_path, 2 * _size(chain[-1]))
    assert [store.contains(block.hash) for block in chain] == [True, True, False, False, False]
    assert _on_disk(tmp_path) <= 2 * _size(chain[-1])


def test_pinned_blocks_stay_and_the_newcomer_does_not_fit(tmp_path: Path) -> None:
    pinned = make_block((1,))
    store = _store(tmp_path, _size(pinned))
    store.put_many([pinned])
    store.pin([pinned.hash])
    assert store.put_many([make_block((2,))])[0] is PutOutcome.NO_ROOM
    assert isinstance(store.get(pinned.hash, FINGERPRINT), StoredBlock)
    store.unpin([pinned.hash])
    assert store.put_many([make_block((2,))])[0] is PutOutcome.STORED
    assert not store.contains(pinned.hash)


def test_a_context_longer_than_the_cap_keeps_its_beginning(tmp_path: Path) -> None:
    chain = make_chain(1, 6)
    store = _store(tmp_path, 3 * _size(chain[-1]))
    outcomes = [store.put_many([block])[0] for block in chain]
    assert outcomes == [PutOutcome.STORED] * 3 + [PutOutcome.NO_ROOM] * 3
    assert [store.contains(block.hash) for block in chain] == [True] * 3 + [False] * 3


def test_blocks_of_other_models_are_under_the_same_cap(tmp_path: Path) -> None:
    other = make_block((1,), fingerprint="sha256:" + "cc" * 32)
    mine = make_block((1,))
    store = _store(tmp_path, _size(mine))
    store.put_many([other])
    assert store.put_many([mine])[0] is PutOutcome.STORED
    assert not store.contains(other.hash)


def test_a_cap_of_nothing_stores_nothing(tmp_path: Path) -> None:
    store = _store(tmp_path, 0)
    assert store.put_many([make_block()])[0] is PutOutcome.NO_ROOM
    assert _on_disk(tmp_path) == 0


def test_unpinning_what_is_not_pinned_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _store(tmp_path, 0).unpin([make_block().hash])


class FiniteDisk:
    """The free space of a disk on which others write too."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self.root = root
        self.size_bytes = size_bytes
        self.others_bytes = 0

    def free(self) -> int:
        return self.size_bytes - self.others_bytes - _on_disk(self.root)


def _store_on(disk: FiniteDisk, free_min_bytes: int, events: list[StoreEvent]) -> BlockStore:
    store = BlockStore(
        disk.root,
        budget_bytes=1 << 20,
        clock=CLOCK,
        spare=lambda: disk.free() - free_min_bytes,
        on_event=events.append,
        disk=Disk(sync=False),
    )
    store.scan()
    return store


def test_the_store_leaves_the_space_of_its_floor_to_others(tmp_path: Path) -> None:
    chains = [make_chain(start, 2, size_bytes=1024) for start in range(3)]
    each = sum(map(_size, chains[0]))
    disk, events = FiniteDisk(tmp_path, 3 * each + 100), list[StoreEvent]()
    store = _store_on(disk, each, events)
    for chain in chains:
        assert store.put_many(chain) == [PutOutcome.STORED] * 2
        assert disk.free() >= each
    assert [store.contains(chain[0].hash) for chain in chains] == [False, True, True]

    disk.others_bytes = each
    assert store.relieve() == 2
    assert disk.free() >= each
    assert [store.contains(chain[0].hash) for chain in chains] == [False, False, True]
    assert isinstance(events[-1], CacheBlocksEvicted)
    assert (events[-1].blocks, events[-1].size_bytes) == (2, each)
    assert store.relieve() == 0


def test_a_disk_that_others_have_filled_loses_all_blocks_that_nothing_uses(tmp_path: Path) -> None:
    used, unused = make_chain(1, 2, size_bytes=1024), make_chain(2, 2, size_bytes=1024)
    each = sum(map(_size, used))
    disk = FiniteDisk(tmp_path, 10 * each)
    store = _store_on(disk, 4 * each, [])
    store.put_many(used)
    store.put_many(unused)
    store.pin([block.hash for block in used])
    disk.others_bytes = 10 * each
    assert store.relieve() == 2
    assert [store.contains(block.hash) for block in (*used, *unused)] == [True, True, False, False]
    assert store.put_many([make_block()])[0] is PutOutcome.NO_ROOM
    disk.others_bytes = 0
    assert store.put_many([make_block()])[0] is PutOutcome.STORED
