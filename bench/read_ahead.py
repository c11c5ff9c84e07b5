"""How long does it take to read a context from a cold disk, and when is its first block there?

``python -m bench.read_ahead`` prints Markdown. The baseline reads the same files one after another
and hashes each, on one thread. All ways take turns in one run; the page cache is dropped before
each (``posix_fadvise``, so on Linux only).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.block_store import FINGERPRINT, make_blocks, open_store
from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import StoredBlock
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from worker.cachestore.read_ahead import ReadAhead, ReadLimits

WAIT_S = 600.0


class _Spent(NamedTuple):
    """Seconds to the first block and to the last."""

    first_s: float
    all_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--layers", type=int, default=200, help="0.2 MB in each block for each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        store = open_store(Path(name), Disk())
        blocks = make_blocks(given.blocks, layers=given.layers)
        store.put_many(blocks)
        size_mb = blocks[0].nbytes / 1e6
        names = [block.hash for block in blocks]
        del blocks
        files = sorted(Path(name).rglob("*.kv"))
        ways: dict[str, Callable[[], _Spent]] = {"read and hash each": lambda: _plainly(files)}
        for threads in (1, 2, 3):
            limits = ReadLimits(threads=threads)
            ways[f"read ahead, threads: {threads}"] = lambda to=limits: _ahead(store, names, to)  # type: ignore[misc]  # bound now
        spent: dict[str, list[_Spent]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, measure in ways.items():
                _drop_cached(files)
                spent[way].append(measure())
    _print(spent, given.blocks * size_mb)


def _print(spent: dict[str, list[_Spent]], size_mb: float) -> None:
    print(
        f"{size_mb:,.0f} MB, median (least) of {len(next(iter(spent.values())))} rounds in turn\n"
    )
    print("| way | first block ms | all ms | MB/s | ratio of medians |")
    print("|---|--:|--:|--:|--:|")
    base_s = 0.0
    for way, rounds in spent.items():
        first_ms = 1000 * statistics.median(each.first_s for each in rounds)
        all_s = statistics.median(each.all_s for each in rounds)
        least_s = min(each.all_s for each in rounds)
        base_s = base_s or all_s
        print(
            f"| {way} | {first_ms:,.0f} | {1000 * all_s:,.0f} ({1000 * least_s:,.0f})"
            f" | {size_mb / all_s:,.0f} | {all_s / base_s:.2f} |"
        )


def _plainly(files: list[Path]) -> _Spent:
    started, first_s = time.perf_counter(), 0.0
    for file in files:
        hashlib.sha256(file.read_bytes()).hexdigest()
        first_s = first_s or time.perf_counter() - started
    return _Spent(first_s, time.perf_counter() - started)


def _ahead(store: BlockStore, names: list[BlockHash], limits: ReadLimits) -> _Spent:
    ahead = ReadAhead(store, limits=limits)
    ahead.start()
    started, first_s = time.perf_counter(), 0.0
    read = ahead.read(names, FINGERPRINT)
    assert read is not None
    while not read.done:
        read.wait(WAIT_S)
        assert all(isinstance(block, StoredBlock) for block in read.take(1))
        first_s = first_s or time.perf_counter() - started
    all_s = time.perf_counter() - started
    assert ahead.close(WAIT_S)
    return _Spent(first_s, all_s)


def _drop_cached(files: list[Path]) -> None:
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
