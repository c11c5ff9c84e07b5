"""The cap holds at every instant, and what goes first is what is least missed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.blockstore.blocks import NewBlock, PutOutcome, StoredBlock
from ops.blockstore.disk import Disk
from ops.blockstore.events import BlocksEvicted, StoreEvent, ignore
from ops.blockstore.format import encode
from ops.blockstore.store import BlockStore
from tests.support.builders.blocks import FINGERPRINT, make_block, make_chain
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


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "touch", "pin", "unpin", "delete", "restart"]),
        st.integers(0, 3),
        st.integers(1, 5),
    ),
    max_size=25,
)


@given(operations, st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_the_cap_holds_whatever_is_done(
    steps: list[tuple[str, int, int]], budget_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        disk = WatchedDisk(root)
        store = _store(root, budget_bytes, disk=disk)
        pinned: list[NewBlock] = []
        for step, context, length in steps:
            CLOCK.advance(1)
            chain = make_chain(context, length)
            there = [block for block in pinned if store.contains(block.hash)]
            if step == "put":
                store.put_many(chain)
            elif step == "touch":
                store.touch([block.hash for block in chain])
            elif step == "pin":
                store.pin([block.hash for block in chain])
                pinned += chain
            elif step == "unpin":
                store.unpin([block.hash for block in pinned])
                pinned = []
            elif step == "delete":
                store.delete(chain[-1].hash)
                there = [block for block in there if block.hash != chain[-1].hash]
            else:
                store = _store(root, budget_bytes, disk=disk)
                pinned = []
                there = []
            assert disk.most_bytes <= budget_bytes
            assert store.stats().size_bytes == _on_disk(root) <= budget_bytes
            assert all(store.contains(block.hash) for block in there)


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
    assert store.put(extra) is PutOutcome.STORED
    # Its last block: nothing builds on it.
    assert not store.contains(young[-1].hash)
    assert all(store.contains(block.hash) for block in (*old, *young[:-1]))
    (event,) = events
    assert event == BlocksEvicted(blocks=1, size_bytes=_size(young[-1]))


def test_no_block_goes_before_those_that_build_on_it(tmp_path: Path) -> None:
    chain = make_chain(1, 5)
    store = _store(tmp_path, 5 * _size(chain[-1]))
    store.put_many(chain)
    for gone in range(1, 5):
        store.put(make_block((100 + gone,)))
        assert [store.contains(block.hash) for block in chain] == [at < 5 - gone for at in range(5)]
    assert store.orphans() == []


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
    store.put(pinned)
    store.pin([pinned.hash])
    assert store.put(make_block((2,))) is PutOutcome.NO_ROOM
    assert isinstance(store.get(pinned.hash, FINGERPRINT), StoredBlock)
    store.unpin([pinned.hash])
    assert store.put(make_block((2,))) is PutOutcome.STORED
    assert not store.contains(pinned.hash)


def test_a_context_longer_than_the_cap_keeps_its_beginning(tmp_path: Path) -> None:
    chain = make_chain(1, 6)
    store = _store(tmp_path, 3 * _size(chain[-1]))
    outcomes = [store.put(block) for block in chain]
    assert outcomes == [PutOutcome.STORED] * 3 + [PutOutcome.NO_ROOM] * 3
    assert [store.contains(block.hash) for block in chain] == [True] * 3 + [False] * 3


def test_blocks_of_other_models_are_under_the_same_cap(tmp_path: Path) -> None:
    other = make_block((1,), fingerprint="sha256:" + "cc" * 32)
    mine = make_block((1,))
    store = _store(tmp_path, _size(mine))
    store.put(other)
    assert store.put(mine) is PutOutcome.STORED
    assert not store.contains(other.hash)


def test_a_cap_of_nothing_stores_nothing(tmp_path: Path) -> None:
    store = _store(tmp_path, 0)
    assert store.put(make_block()) is PutOutcome.NO_ROOM
    assert _on_disk(tmp_path) == 0


def test_unpinning_what_is_not_pinned_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _store(tmp_path, 0).unpin([make_block().hash])
