"""A disk that lies, is full or is small: nothing wrong is served and no generation fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from domain.events.cache import (
    CacheBlockRejected,
    CacheBlocksEvicted,
    CachePersistencePaused,
    CachePersistenceResumed,
)
from domain.kv.hashing import BlockHash, pack_ids
from ops.blockstore.blocks import (
    RejectReason,
)
from tests.support.builders.blocks import FailingDisk, make_block
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK
from tests.support.models.tiny_architectures import GEMMA3, LLAMA, Architecture
from tests.support.polling import wait_until
from worker.cachestore.tier import TierState
from worker.cachestore.writer import WriterLimits, WriteState

PROMPT = random_tokens(5 * BLOCK + 5, 21)
#: The block that is damaged, counted from 0; the blocks before it stay good.
DAMAGED = 2

MakeBench = Callable[..., DiskBench]


def names_of(bench: DiskBench, prompt: list[int] = PROMPT) -> list[BlockHash]:
    return list(bench.reuse.pool.hasher.chain(pack_ids(prompt), BLOCK))


def file_of(root: Path, name: BlockHash) -> Path:
    return next(root.rglob(f"{name.hex()}-*.kv"))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x10
    path.write_bytes(content)


def _header_lies(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes((1 << 40).to_bytes(8, "little") + content[8:])


def _header_too_long(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes((len(content)).to_bytes(8, "little") + content[8:])


def _foreign(path: Path) -> None:
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")


def _another_block(path: Path) -> None:
    other = next(each for each in path.parent.parent.rglob("*.kv") if each != path)
    path.write_bytes(other.read_bytes())


DAMAGES = [
    (_truncate, RejectReason.TRUNCATED),
    (_empty, RejectReason.TRUNCATED),
    (_flip, RejectReason.CHECKSUM),
    (_header_lies, RejectReason.MALFORMED),
    (_header_too_long, RejectReason.TRUNCATED),
    (_foreign, RejectReason.FOREIGN),
    (_another_block, RejectReason.RENAMED),
]


@pytest.mark.parametrize(
    ("damage", "reason"), DAMAGES, ids=lambda each: getattr(each, "__name__", each)
)
def test_damaged_block_is_rejected_and_computed_again(
    process: MakeBench, tmp_path: Path, damage: Callable[[Path], None], reason: RejectReason
) -> None:
    first = process()
    expected = first.run_alone(PROMPT, 10).tokens
    name = names_of(first)[DAMAGED]
    first.settle()
    path = file_of(tmp_path, name)
    damage(path)
    second = process()
    run = second.run_alone(PROMPT, 10)
    assert (run.tokens, run.cached) == (expected, DAMAGED * BLOCK)
    (rejected,) = [event for event in second.events if isinstance(event, CacheBlockRejected)]
    assert (rejected.block, rejected.reason) == (name.hex(), reason)
    # What was computed again is stored again, and whole.
    third = process()
    again = third.run_alone(PROMPT, 10)
    assert (again.tokens, again.cached) == (expected, len(PROMPT) - 1)
    assert not third.events


def test_block_of_another_fingerprint_under_our_name_is_rejected(
    process: MakeBench, tmp_path: Path
) -> None:
    first = process()
    expected = first.run_alone(PROMPT, 10).tokens
    name = names_of(first)[DAMAGED]
    first.settle()
    path = file_of(tmp_path, name)
    content = path.read_bytes()
    ours = first.reuse.fingerprint.encode()
    other = ours[:-4] + b"0000"
    assert content.count(ours) == 1
    forged = content.replace(ours, other)
    path.write_bytes(forged)
    second = process()
    run = second.run_alone(PROMPT, 10)
    assert (run.tokens, run.cached) == (expected, DAMAGED * BLOCK)
    (rejected,) = [event for event in second.events if isinstance(event, CacheBlockRejected)]
    assert rejected.block == name.hex()


def test_whole_block_of_other_tensors_is_rejected(process: MakeBench) -> None:
    first = process()
    expected = first.run_alone(PROMPT, 10).tokens
    parent, name = names_of(first)[DAMAGED - 1 : DAMAGED + 1]
    fingerprint = first.reuse.fingerprint
    first.settle()
    start = DAMAGED * BLOCK
    foreign = make_block(
        PROMPT[start : start + BLOCK], parent=parent, fingerprint=fingerprint, size_bytes=256
    )
    assert foreign.hash == name
    first.close()
    assert first.store.delete(name)
    first.store.put_many([foreign])
    second = process()
    run = second.run_alone(PROMPT, 10)
    assert (run.tokens, run.cached) == (expected, DAMAGED * BLOCK)
    (rejected,) = [event for event in second.events if isinstance(event, CacheBlockRejected)]
    assert rejected.block == name.hex()


def test_block_that_vanishes_is_a_miss(process: MakeBench, tmp_path: Path) -> None:
    first = process()
    expected = first.run_alone(PROMPT, 10).tokens
    name = names_of(first)[DAMAGED]
    first.settle()
    second = process()
    file_of(tmp_path, name).unlink()
    run = second.run_alone(PROMPT, 10)
    assert (run.tokens, run.cached) == (expected, DAMAGED * BLOCK)
    assert not second.events


def test_full_disk_pauses_persistence_and_generation_goes_on(process: MakeBench) -> None:
    disk = FailingDisk()
    limits = WriterLimits(retry_min_s=0.01, retry_max_s=0.01)
    bench = process(disk=disk, limits=limits)
    disk.writes_left = 2
    run = bench.run_alone(PROMPT, 10)
    assert run.finish is not None
    bench.settle()
    assert bench.run_alone(PROMPT, 10).tokens == run.tokens
    bench.settle()
    (paused,) = [event for event in bench.events if isinstance(event, CachePersistencePaused)]
    assert paused.error == "ENOSPC"
    assert bench.tier.counted()["disk_cache_operations_total"]["dropped"] > 0

    disk.writes_left = None
    bench.wait_until_it_writes()
    again = bench.run_alone(PROMPT, 10)
    bench.settle()
    assert any(isinstance(event, CachePersistenceResumed) for event in bench.events)
    # What was not stored while it was full is stored when it is next used.
    second = process()
    back = second.run_alone(PROMPT, 10)
    assert (back.tokens, back.cached) == (again.tokens, len(PROMPT) - 1)


def test_directory_that_cannot_be_read_switches_persistence_off_and_nothing_else(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    root.write_text("a file where a directory should be")
    bench = DiskBench(LLAMA, root, scanned=False)
    run = bench.run_alone(PROMPT, 4)
    assert len(run.tokens) == 4
    assert any(isinstance(event, CachePersistencePaused) for event in bench.events)
    assert bench.reuse.pool.may_lose(), "contexts do not wait for the disk"
    bench.close()


def test_contexts_make_room_while_the_directory_cannot_be_read(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.write_text("a file where a directory should be")
    bench = DiskBench(LLAMA, root, scanned=False, budget_bytes=48 << 10)
    wait_until(lambda: bench.tier.state() is TierState.PAUSED)
    for n in range(4):
        bench.wait(random_tokens(5 * BLOCK, 40 + n), 4)
    bench.drain()
    assert not bench.waiting
    bench.close()


def test_cap_is_kept_and_the_least_recently_used_contexts_go_first(
    process: MakeBench, tmp_path: Path
) -> None:
    first = process()
    first.run_alone(PROMPT, 4)
    first.settle()
    context_bytes = first.tier.stats().size_bytes
    cap = int(3.5 * context_bytes)
    bench = process(disk_budget_bytes=cap)
    prompts = [random_tokens(len(PROMPT), 30 + n) for n in range(6)]
    for prompt in prompts:
        bench.run_alone(prompt, 4)
        bench.run_alone(PROMPT, 4)  # in use all the time
        bench.settle()
        on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
        assert on_disk <= cap
    assert any(isinstance(event, CacheBlocksEvicted) for event in bench.events)
    after = process(disk_budget_bytes=cap)
    assert after.run_alone(PROMPT, 4).cached == len(PROMPT) - 1
    assert after.run_alone(prompts[-1], 4).cached == len(PROMPT) - 1
    assert after.run_alone(prompts[0], 4).cached == 0


@pytest.mark.parametrize("architecture", [LLAMA, GEMMA3], ids=["llama", "gemma3"])
def test_a_use_from_memory_reaches_the_order_on_disk(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    other = random_tokens(len(PROMPT), 30)
    for prompt in (PROMPT, other):
        bench.run_alone(prompt, 4)
        bench.settle()
    assert _first_block_used_last(bench) == names_of(bench, other)[0]
    assert bench.run_alone(PROMPT, 4).cached == len(PROMPT) - 1
    assert not bench.tier.stats().hits, "the context was in memory"
    bench.settle()
    again = process(architecture)
    assert _first_block_used_last(again) == names_of(again)[0]


def _first_block_used_last(bench: DiskBench) -> BlockHash:
    """Return the block that is evicted last: a block is used whenever one behind it is."""
    return bench.store.blocks()[-1].hash


def test_full_queue_skips_blocks_and_catches_up_later(process: MakeBench) -> None:
    bench = process(limits=WriterLimits(queue_blocks=2))
    bench.hold_writes()
    bench.run_alone(PROMPT, 4)
    assert bench.tier.write_state() is WriteState.BUSY
    bench.let_write()
    bench.settle()
    for _ in range(6):
        bench.run_alone(PROMPT, 4)
        bench.settle()
    second = process()
    assert second.run_alone(PROMPT, 4).cached == len(PROMPT) - 1
