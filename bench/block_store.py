"""How fast is the block store, compared with plain files on the same disk?

``python -m bench.block_store`` prints Markdown. All rows use the same bytes in the same run, in
turn, on the same file system. Reads come from the page cache, so they measure checks and copies.
The baseline in the first row writes or reads one plain file for each block.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from domain.kv.hashing import BlockHash, block_hash
from ops.blockstore.blocks import NewBlock, StoredBlock
from ops.blockstore.disk import Disk
from ops.blockstore.payload import RawTensor
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from worker.cachestore.writer import WriteBehind

FINGERPRINT = "sha256:" + "ab" * 32
#: Keys and values of 256 tokens: 30 layers, 3 KV heads of 64, bfloat16, layers stacked.
SHAPE = (30, 3, 256, 64)
BUDGET_BYTES = 1 << 40
FLUSH_S = 600.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    given = parser.parse_args()
    blocks = make_blocks(given.blocks)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        _print_rates(Path(name), blocks, given.rounds)
        print()
        _print_submit(Path(name) / "behind", blocks)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        print()
        _print_scan(Path(name), given.files)


def make_blocks(count: int, layers: int = SHAPE[0]) -> list[NewBlock]:
    """Return the blocks of one context with random bytes, as ``SHAPE`` with other layers."""
    blocks: list[NewBlock] = []
    shape = (layers, *SHAPE[1:])
    half_bytes = 2 * math.prod(shape)
    for at in range(count):
        parent = blocks[-1].hash if blocks else None
        ids = range(at, at + 256)
        blocks.append(
            NewBlock(
                hash=block_hash(FINGERPRINT, parent, ids),
                parent=parent,
                fingerprint=FINGERPRINT,
                token_ids=ids,
                payload={
                    name: RawTensor("BF16", shape, os.urandom(half_bytes))
                    for name in ("keys", "values")
                },
            )
        )
    return blocks


def _print_rates(root: Path, blocks: Sequence[NewBlock], rounds: int) -> None:
    ways: dict[str, Callable[[Path], float]] = {
        "plain write": lambda to: plain_write(to, blocks, sync=False),
        "put, no sync": lambda to: put(to, blocks, Disk(sync=False), group=1),
        "plain write + fsync each": lambda to: plain_write(to, blocks, sync=True),
        "put, sync each": lambda to: put(to, blocks, Disk(), group=1),
        "put, sync in groups of 16": lambda to: put(to, blocks, Disk(), group=16),
        "plain read": lambda _: plain_read(root / "plain write-0", len(blocks)),
        "get, checked": lambda _: get(root / "put, no sync-0", blocks),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    cpu_times: dict[str, list[float]] = {way: [] for way in ways}
    for round_number in range(rounds):
        for way, measure in ways.items():
            os.sync()  # so that the next measurement does not write data of the last one
            started_s = time.thread_time()
            times[way].append(measure(root / f"{way}-{round_number}"))
            cpu_times[way].append(time.thread_time() - started_s)
    size_mb = blocks[0].nbytes / 1e6
    print(f"{len(blocks)} blocks of {size_mb:.1f} MB, median (range) of {rounds} rounds in turn\n")
    print("| way | ms a block | MB/s | CPU ms |")
    print("|---|---|---|---|")
    for way, spent in times.items():
        each_ms = [1000 * one / len(blocks) for one in spent]
        middle = statistics.median(each_ms)
        between = f"{min(each_ms):.1f} to {max(each_ms):.1f}"
        cpu_ms = 1000 * statistics.median(cpu_times[way]) / len(blocks)
        rate = f"{1000 * size_mb / middle:,.0f}"
        print(f"| {way} | {middle:.1f} ({between}) | {rate} | {cpu_ms:.1f} |")


def plain_write(to: Path, blocks: Sequence[NewBlock], *, sync: bool) -> float:
    """Write one plain file for each block; return the seconds."""
    to.mkdir()
    started = time.perf_counter()
    for at, block in enumerate(blocks):
        with (to / str(at)).open("wb", buffering=0) as file:
            for tensor in block.payload.values():
                file.write(tensor.joined())
            if sync:
                os.fsync(file.fileno())
    return time.perf_counter() - started


def put(to: Path, blocks: Sequence[NewBlock], disk: Disk, *, group: int) -> float:
    """Put the blocks into an empty store, ``group`` at a time; return the seconds."""
    store = open_store(to, disk)
    started = time.perf_counter()
    for first in range(0, len(blocks), group):
        store.put_many(blocks[first : first + group])
    spent = time.perf_counter() - started
    assert store.stats().stored == len(blocks)
    return spent


def plain_read(where: Path, count: int) -> float:
    """Read the files of ``plain_write``; return the seconds."""
    started = time.perf_counter()
    for at in range(count):
        (where / str(at)).read_bytes()
    return time.perf_counter() - started


def get(where: Path, blocks: Sequence[NewBlock]) -> float:
    """Get and check every block of a store; return the seconds."""
    store = open_store(where, Disk())
    store.scan()
    started = time.perf_counter()
    for block in blocks:
        assert isinstance(store.get(block.hash, FINGERPRINT), StoredBlock)
    return time.perf_counter() - started


def _print_submit(to: Path, blocks: Sequence[NewBlock]) -> None:
    """Measure the engine thread's cost while another thread writes and syncs."""
    store = open_store(to, Disk())
    writer = WriteBehind(store, clock=SystemClock())
    writer.start()
    spent_us = []
    for block in blocks:
        started = time.perf_counter()
        writer.write(block)
        store.contains(block.hash)
        spent_us.append(1e6 * (time.perf_counter() - started))
        time.sleep(0.005)  # a decode step
    assert writer.flush(FLUSH_S)
    assert writer.close(FLUSH_S)
    spent_us.sort()
    print("| on the engine's thread | median | worst |")
    print("|---|---|---|")
    print(
        f"| submit + contains, disk busy | {statistics.median(spent_us):.0f} µs"
        f" | {spent_us[-1]:.0f} µs |"
    )


def _print_scan(root: Path, count: int) -> None:
    parent: BlockHash | None = None
    for at in range(count):
        name = block_hash(FINGERPRINT, parent, (at,))
        directory = root / ("ab" * 8) / name.hex()[:2]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name.hex()}-{parent.hex() if parent else 'root'}-256.kv").touch()
        # Contexts of 64 blocks: 16k tokens.
        parent = None if at % 64 == 63 else name
    started = time.perf_counter()
    with os.scandir(root / ("ab" * 8)) as fans:
        bare = sum(1 for fan in fans for each in Path(fan.path).iterdir() if each.stat())
    bare_s = time.perf_counter() - started
    assert bare == count
    spent_ms = []
    for _ in range(3):
        store = open_store(root, Disk())
        report = store.scan()
        assert report.blocks == count
        spent_ms.append(report.took_ms)
    print("| start with | median | bare listing with sizes |")
    print("|---|---|---|")
    print(f"| {count:,} blocks | {statistics.median(spent_ms):.0f} ms | {1000 * bare_s:.0f} ms |")


def open_store(root: Path, disk: Disk) -> BlockStore:
    """Return a store without a practical limit, not scanned yet."""
    return BlockStore(root, budget_bytes=BUDGET_BYTES, clock=SystemClock(), disk=disk)


if __name__ == "__main__":
    main()
