"""Reads deliver blocks one by one and in order, share a bound fairly, end at a useless block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import BlockTarget, NewBlock, PutOutcome, Rejected, StoredBlock
from ops.blockstore.store import BlockStore
from tests.support.builders.blocks import FINGERPRINT, FailingDisk, make_block, make_chain
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled, wait_until
from worker.cachestore.read_ahead import BlockRead, Continuation, Loaded, ReadAhead, ReadLimits

WAIT_S = 60.0
_BIG = 4000
_CONTINUATION = Continuation(
    parent=None,
    token_ids=(1, 2, 3),
    fingerprint=FINGERPRINT,
)


class HeldStore(BlockStore):
    """A store that reads a block only when the test allows it."""

    def hold(self) -> None:
        self.permits = threading.Semaphore(0)
        self.is_held = True

    def release(self, blocks: int = 1000) -> None:
        self.permits.release(blocks)

    def prepare(self) -> None:
        self.is_held = False
        self.entered: list[BlockHash] = []

    def get(
        self, block_hash: BlockHash, fingerprint: str, target: BlockTarget | None = None
    ) -> StoredBlock | Rejected | None:
        self.entered.append(block_hash)
        if self.is_held:
            assert self.permits.acquire(timeout=scaled(WAIT_S))
        return super().get(block_hash, fingerprint, target)


class World:
    def __init__(self, root: Path, limits: ReadLimits | None = None, budget: int = 1 << 20) -> None:
        self.root = root
        self.store = HeldStore(root, budget_bytes=budget, clock=FakeClock(), disk=FailingDisk())
        self.store.prepare()
        self.store.scan()
        self.ahead = ReadAhead(self.store, limits=limits)

    def stored(self, chain: list[NewBlock]) -> list[NewBlock]:
        self.store.put_many(chain)
        return chain

    def open(self, chain: list[NewBlock]) -> BlockRead:
        read = self.ahead.read([block.hash for block in chain], FINGERPRINT)
        assert read is not None
        return read

    def file_of(self, block: NewBlock) -> Path:
        return next(self.root.rglob(f"{block.hash.hex()}*"))

    def size_of(self, block: NewBlock) -> int:
        return self.store.file_bytes(block.hash)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**limits: int) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), ReadLimits(**limits)))
        return worlds[-1]

    yield make
    for world in worlds:
        if world.store.is_held:
            world.store.release()
        assert world.ahead.close(WAIT_S)
        assert world.ahead.held_bytes() == 0
        assert world.store.stats().pinned == 0


def _all(read: BlockRead) -> list[Loaded]:
    results: list[Loaded] = []
    while not read.done:
        assert read.wait(scaled(WAIT_S))
        results += read.take(1)
    return results


def _names(results: list[Loaded]) -> list[BlockHash]:
    return [each.meta.hash for each in results if isinstance(each, StoredBlock)]


def _kinds(results: list[Loaded]) -> list[str]:
    return [type(each).__name__ for each in results]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_context_comes_back_in_its_order(make_world: Callable[..., World], threads: int) -> None:
    world = make_world(threads=threads)
    chain = world.stored(make_chain(1, 20))
    read = world.open(chain)
    world.ahead.start()
    assert _names(_all(read)) == [block.hash for block in chain]
    assert read.take() == []
    wait_until(lambda: world.store.stats().pinned == 0)


def test_each_block_is_delivered_when_it_is_read(make_world: Callable[..., World]) -> None:
    world = make_world(threads=1)
    chain = world.stored(make_chain(1, 3))
    world.store.hold()
    world.ahead.start()
    read = world.open(chain)
    assert read.take() == []
    assert not read.wait(0)
    for block in chain:
        world.store.release(1)
        assert read.wait(scaled(WAIT_S))
        assert _names(read.take()) == [block.hash]
    assert not read.done, "the last block was not copied yet"
    assert world.ahead.held_bytes() == world.size_of(chain[-1])
    assert read.take() == []
    assert read.done


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("harm", "last"), [("unlink", "NoneType"), ("damage", "Rejected")])
def test_reading_ends_with_the_first_useless_block(
    make_world: Callable[..., World], harm: str, last: str, threads: int
) -> None:
    world = make_world(threads=threads)
    chain = world.stored(make_chain(1, 6))
    if harm == "unlink":
        world.file_of(chain[2]).unlink()
    else:
        world.file_of(chain[2]).write_bytes(b"junk")
    world.ahead.start()
    assert _kinds(_all(world.open(chain))) == ["StoredBlock", "StoredBlock", last]


def test_bytes_ahead_are_bounded_and_taking_returns_the_credit(
    make_world: Callable[..., World],
) -> None:
    world = make_world(ahead_bytes=1)
    chain = world.stored(make_chain(1, 8, size_bytes=400))
    size = world.size_of(chain[1])
    world.ahead.limit_bytes(6 * size)
    world.ahead.start()
    read = world.open(chain)
    # Half of the bound stays free for the next read.
    wait_until(lambda: len(world.store.entered) == 3)
    wait_until(lambda: read.ready.keys() >= {0, 1})
    assert len(read.take(1)) == 1
    assert len(world.store.entered) == 3, "the first block is being copied"
    assert len(read.take(1)) == 1
    wait_until(lambda: len(world.store.entered) == 4)
    read.cancel()
    assert read.done


def test_several_reads_share_the_bound(make_world: Callable[..., World]) -> None:
    world = make_world(threads=1)
    one, other = (world.stored(make_chain(start, 6, size_bytes=400)) for start in (1, 2))
    world.ahead.limit_bytes(6 * world.size_of(one[1]) + 100)
    first, second = world.open(one), world.open(other)
    world.ahead.start()
    wait_until(lambda: len(world.store.entered) == 4)
    assert world.store.entered == [one[0].hash, other[0].hash, one[1].hash, other[1].hash]
    assert _names(_all(second)) == [block.hash for block in other]
    assert _names(_all(first)) == [block.hash for block in one]


def test_a_block_above_the_bound_is_read_alone(make_world: Callable[..., World]) -> None:
    world = make_world(threads=2)
    big = world.stored([make_block((9,), size_bytes=_BIG)])
    small = world.stored(make_chain(1, 8))
    world.ahead.limit_bytes(3 * world.size_of(small[1]))
    most = 0
    reads = [world.open(small), world.open(big)]
    world.ahead.start()
    left = list(reads)
    while left:
        for read in left:
            most = max(most, world.ahead.held_bytes())
            read.take(1)
        left = [read for read in left if not read.done]
    assert most <= world.size_of(big[0])
    assert sorted(world.store.entered) == sorted(block.hash for block in (*big, *small))


def test_a_consumer_that_stops_taking_does_not_stop_the_others(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    idle, busy = (world.stored(make_chain(start, 6, size_bytes=400)) for start in (1, 2))
    world.ahead.limit_bytes(4 * world.size_of(idle[1]))
    world.ahead.start()
    stopped = world.open(idle)
    assert stopped.wait(scaled(WAIT_S))
    assert _names(_all(world.open(busy))) == [block.hash for block in busy]
    stopped.cancel()


def test_too_many_reads_are_refused_until_one_ends(make_world: Callable[..., World]) -> None:
    world = make_world(reads=2)
    chain = world.stored(make_chain(1, 1))
    first, second = world.open(chain), world.open(chain)
    names = [block.hash for block in chain]
    assert world.ahead.read(names, FINGERPRINT) is None
    second.cancel()
    world.ahead.start()
    third = world.open(chain)
    for read in (first, third):
        assert len(_all(read)) == 1
    world.open(chain).cancel()


def test_a_read_of_nothing_is_done(make_world: Callable[..., World]) -> None:
    assert make_world().open([]).done


def test_a_continuation_is_cancelled_before_during_and_after_its_search(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(threads=1)
    (block,) = world.stored([make_block((1, 2, 3))])
    searching, go_on = threading.Event(), threading.Event()

    def token_ids(_: BlockHash) -> tuple[int, ...]:
        searching.set()
        assert go_on.wait(scaled(WAIT_S))
        return (1, 2, 3)

    monkeypatch.setattr(world.store, "token_ids", token_ids)
    reads = [world.ahead.read_continuation(_CONTINUATION) for _ in range(3)]
    before, during, after = [read for read in reads if read is not None]
    before.cancel()
    world.ahead.start()
    assert searching.wait(scaled(WAIT_S))
    during.cancel()
    assert before.done
    assert during.done
    go_on.set()
    assert after.wait(scaled(WAIT_S))
    assert world.store.entered == [block.hash]
    after.cancel()


def test_a_search_that_fails_finds_nothing(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.stored([make_block((1, 2, 3))])
    monkeypatch.setattr(world.store, "token_ids", lambda _: 1 / 0)
    read = world.ahead.read_continuation(_CONTINUATION)
    world.ahead.start()
    assert read is not None
    assert _all(read) == []


def test_blocks_of_an_open_read_are_not_evicted(tmp_path: Path) -> None:
    first = World(tmp_path)
    chain = first.stored(make_chain(1, 2, size_bytes=400))
    world = World(tmp_path, budget=first.store.stats().size_bytes)
    read = world.open(chain)
    assert world.store.put_many([make_block((9,))])[0] is PutOutcome.NO_ROOM
    world.ahead.start()
    assert _kinds(_all(read)) == ["StoredBlock", "StoredBlock"]
    assert world.ahead.close(WAIT_S)
    assert world.store.put_many([make_block((9,))])[0] is PutOutcome.STORED


def test_cancel_while_a_file_is_read_drops_its_bytes(make_world: Callable[..., World]) -> None:
    world = make_world(threads=1)
    chain = world.stored(make_chain(1, 3))
    world.store.hold()
    world.ahead.start()
    read = world.open(chain)
    read.targets = lambda _: lambda _: None
    wait_until(lambda: len(world.store.entered) == 1)
    read.cancel()
    assert (read.done, read.is_read) == (True, False)
    assert read.wait(0)
    assert world.store.stats().pinned == 3, "the file is still open"
    world.store.release()
    wait_until(lambda: world.ahead.held_bytes() == 0)
    wait_until(lambda: world.store.stats().pinned == 0)
    assert read.is_read
    assert getattr(read, "targets", 0) is None
    assert world.store.stats().hits == 1
    read.cancel()


def test_blocks_in_the_memory_of_the_consumer_are_read_without_a_bound(
    make_world: Callable[..., World],
) -> None:
    world = make_world(ahead_bytes=1)
    chain = world.stored(make_chain(1, 4, size_bytes=400))
    memory = [bytearray(400) for _ in chain]
    world.ahead.start()
    before = world.ahead.progress
    read = world.ahead.read(
        [block.hash for block in chain],
        FINGERPRINT,
        lambda index: lambda _: [memoryview(memory[index])],
    )
    assert read is not None
    wait_until(lambda: read.is_read)
    assert (read.taken, world.ahead.held_bytes(), read.targets) == (0, 0, None)
    assert read.progress > before
    results = _all(read)
    assert all(isinstance(result, StoredBlock) and result.is_placed for result in results)
    for block, held in zip(chain, memory, strict=True):
        assert bytes(held) == b"".join(bytes(one.joined()) for one in block.payload.values())


def test_closing_ends_reads_and_refuses_new_ones(make_world: Callable[..., World]) -> None:
    world = make_world()
    chain = world.stored(make_chain(1, 2))
    read = world.open(chain)
    assert world.ahead.close(WAIT_S)
    assert read.done
    assert read.take() == []
    assert world.ahead.read([chain[0].hash], FINGERPRINT) is None


def test_unexpected_error_ends_one_read_and_the_next_one_works(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    chain = world.stored(make_chain(1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "get", lambda *_: 1 / 0)
        read = world.open(chain)
        world.ahead.start()
        assert _all(read) == [None]
    assert _kinds(_all(world.open(chain))) == ["StoredBlock", "StoredBlock"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.lists(st.sampled_from([8, 400, 2000]), max_size=6), min_size=1, max_size=4),
    bound=st.sampled_from([1, 900, 3000, 100_000]),
    threads=st.integers(1, 3),
    order=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, None])), max_size=12),
)
def test_whatever_the_consumers_do_the_bound_holds_and_every_block_comes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[list[int]],
    bound: int,
    threads: int,
    order: list[tuple[int, int | None]],
) -> None:
    limits = ReadLimits(ahead_bytes=bound, threads=threads)
    world = World(tmp_path_factory.mktemp("store"), limits)
    chains: list[list[NewBlock]] = []
    for start, lengths in enumerate(sizes):
        chain: list[NewBlock] = []
        for at, size in enumerate(lengths):
            parent = chain[-1].hash if chain else None
            chain.append(make_block((start, at), parent=parent, size_bytes=size))
        chains.append(world.stored(chain))
    largest = max((world.size_of(block) for chain in chains for block in chain), default=0)
    reads = [world.open(chain) for chain in chains]
    taken: list[list[Loaded]] = [[] for _ in chains]
    world.ahead.start()
    for number, count in order:
        with suppress(IndexError):
            taken[number] += reads[number].take(count)
        assert world.ahead.held_bytes() <= max(bound, largest)
    while not all(read.done for read in reads):
        for number, read in enumerate(reads):
            taken[number] += read.take(1)
            assert world.ahead.held_bytes() <= max(bound, largest)
    assert [_names(results) for results in taken] == [
        [block.hash for block in chain] for chain in chains
    ]
    assert world.ahead.close(WAIT_S)
    assert world.ahead.held_bytes() == 0
    assert world.store.stats().pinned == 0
