"""The cache figures of the pulse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from domain.kv.contexts import MemoryStats
from domain.kv.hashing import BlockHash
from domain.values import DraftFigures, JobId, Priority, WaitingFor, WaitingJob
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import make_chain
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled
from worker.cachestore.cache_gauge import CacheGauge
from worker.cachestore.tier import DiskTier

WAIT_S = 60.0
STATS = MemoryStats(budget_bytes=1000, used_bytes=300, blocks=3, evicted_blocks=0)


class Blocks:
    def __init__(self, names: Sequence[BlockHash]) -> None:
        self.pool = set(names)

    def forget(self, names: Sequence[BlockHash]) -> None:
        self.pool.difference_update(names)


class Memory:
    def __init__(self, stats: MemoryStats | None) -> None:
        self.stats = stats
        self.drafts = DraftFigures(drafts=1, drafted_tokens=4, accepted_tokens=3)
        self.prefix_cache: Blocks | None = None

    def memory(self) -> MemoryStats | None:
        return self.stats


def test_without_a_prefix_cache_there_are_no_figures() -> None:
    gauge = CacheGauge(None, lambda *_: None)
    assert gauge.read() is None
    gauge.watch(Memory(None))
    assert gauge.read() is None


def test_drafts_are_those_of_the_runner() -> None:
    gauge = CacheGauge(None, lambda *_: None)
    assert gauge.read_drafts() is None
    assert gauge.watch(Memory(None)).drafts == gauge.read_drafts()


def test_memory_alone_reports_the_disk_as_off() -> None:
    gauge = CacheGauge(None, lambda *_: None)
    gauge.watch(Memory(STATS))
    figures = gauge.read()
    assert figures is not None
    assert (figures.ram_blocks, figures.ram_used_bytes, figures.disk) == (3, 300, "off")


def test_disk_is_counted_beside_memory(tmp_path: Path) -> None:
    clock = SystemClock()
    store = BlockStore(tmp_path, budget_bytes=1 << 20, clock=clock, disk=Disk(sync=False))
    tier = DiskTier(store, clock=clock)
    gauge = CacheGauge(tier, lambda *_: None)
    gauge.watch(Memory(STATS))
    tier.start()
    assert tier.wait_scanned(WAIT_S)
    for block in make_chain(1, 3):
        tier.write(block)
    assert tier.flush(WAIT_S)
    figures = gauge.read()
    assert figures is not None
    assert (figures.disk, figures.disk_blocks, figures.disk_budget_bytes) == ("on", 3, 1 << 20)
    assert figures.disk_used_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    assert tier.close(WAIT_S)


def test_evictions_are_reported_once() -> None:
    reported: list[tuple[int, int]] = []
    gauge = CacheGauge(None, lambda blocks, size_bytes: reported.append((blocks, size_bytes)))
    memory = gauge.watch(Memory(STATS))
    gauge.read()
    memory.stats = replace(STATS, evicted_blocks=4)
    gauge.read()
    gauge.read()
    assert reported == [(4, 400)]
    gauge.watch(Memory(STATS))  # another runner counts from nothing
    gauge.read()
    assert reported == [(4, 400)]


def test_longest_wait_of_an_interactive_job_for_memory_counts() -> None:
    clock = FakeClock()
    gauge = CacheGauge(None, lambda *_: None, clock=clock.monotonic)
    gauge.watch(Memory(STATS))

    def full_s(*waiting: WaitingJob) -> float:
        gauge.record_waiting(waiting)
        figures = gauge.read()
        assert figures is not None
        return figures.full_s

    first, second = (
        WaitingJob(id=JobId(f"job-{n}"), waiting_for=WaitingFor.MEMORY, position=n) for n in (1, 2)
    )
    assert full_s(replace(first, waiting_for=WaitingFor.PLACE)) == 0
    assert full_s(replace(first, priority=Priority.BATCH)) == 0
    assert full_s(first) == 0
    clock.advance(5)
    assert full_s(first, second) == 5
    clock.advance(1)
    assert full_s(second) == 1
    assert full_s() == 0


def test_blocks_are_found_in_memory_and_on_disk(tmp_path: Path) -> None:
    clock = SystemClock()
    store = BlockStore(tmp_path, budget_bytes=1 << 20, clock=clock, disk=Disk(sync=False))
    tier = DiskTier(store, clock=clock)
    gauge = CacheGauge(tier, lambda *_: None)
    tier.start()
    assert tier.wait_scanned(WAIT_S)
    blocks = make_chain(1, 3)
    for block in blocks[:2]:
        tier.write(block)
    assert tier.flush(WAIT_S)
    names = [block.hash for block in blocks]
    assert gauge.find_blocks(names) == ([False] * 3, [True, True, False])
    memory = gauge.watch(Memory(STATS))
    assert gauge.find_blocks(names) == ([False] * 3, [True, True, False])
    memory.prefix_cache = Blocks(names[1:])
    assert gauge.find_blocks(names) == ([False, True, True], [True, True, False])
    gauge.forget_blocks(names[2:])
    assert gauge.find_blocks(names) == ([False, True, False], [True, True, False])
    assert tier.close(WAIT_S)


def test_blocks_are_forgotten_on_disk_where_no_runner_has_them(tmp_path: Path) -> None:
    clock = SystemClock()
    store = BlockStore(tmp_path, budget_bytes=1 << 20, clock=clock, disk=Disk(sync=False))
    tier = DiskTier(store, clock=clock)
    gauge = CacheGauge(tier, lambda *_: None)
    tier.start()
    assert tier.wait_scanned(WAIT_S)
    blocks = make_chain(1, 2)
    for block in blocks:
        tier.write(block)
    assert tier.flush(WAIT_S)
    gauge.forget_blocks([blocks[1].hash])
    tier.forget([]).result(scaled(WAIT_S))  # after all deletions
    assert gauge.find_blocks([block.hash for block in blocks])[1] == [True, False]
    assert tier.close(WAIT_S)
