"""EXP-008a: what does loading a context cost?  ``python -m bench.experiments.exp008a``.

Contexts of the KV shape of SmolLM2-135M, each way in turn, medians. The baseline ``raw`` reads the
same bytes from one file into the same memory; ``checked`` reads a file for each block and computes
its SHA-256, the minimum for a store that never returns a damaged block; ``store`` also checks every
field and makes arrays. From the disk: the page cache was dropped first (Linux only).
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.block_store import FINGERPRINT, open_store, put
from bench.experiments.disk import (
    GROUP,
    context_blocks,
    forget_pages,
    print_disk_verdict,
    read_raw,
    scratch,
    to_new_blocks,
    write_raw,
)
from bench.experiments.report import print_conditions, print_table, use_worker_allocator
from bench.kv_moves import CONTEXTS
from ops.blockstore.blocks import NewBlock, StoredBlock
from ops.blockstore.disk import Disk
from worker.engine.mlx.kv.raw import from_raw

ROUNDS = 3


def main() -> None:
    """Print the table."""
    use_worker_allocator()
    started_s = time.monotonic()
    shares: list[float] = []
    print_table(
        (
            ">tokens",
            ">MB",
            "from",
            ">raw MB/s",
            ">checked MB/s",
            ">store MB/s",
            ">store ms",
            ">of raw",
            ">of checked",
        ),
        _rows(shares),
    )
    print_disk_verdict("reads", shares)
    print_conditions(started_s)


def _rows(shares: list[float]) -> Iterator[tuple[object, ...]]:
    for tokens in CONTEXTS:
        blocks = to_new_blocks(context_blocks(tokens))
        size_mb = sum(block.nbytes for block in blocks) / 1e6
        with scratch() as place:
            raw, store = place("raw"), place("store")
            write_raw(raw, sum(block.nbytes for block in blocks))
            put(store, blocks, Disk(), group=GROUP)
            for where in ("page cache", "disk"):
                raw_s, checked_s, store_s = _times_s(raw, store, blocks, cold=where == "disk")
                if where == "disk":
                    shares.append(raw_s / store_s)
                yield (
                    tokens,
                    f"{size_mb:.0f}",
                    where,
                    f"{size_mb / raw_s:,.0f}",
                    f"{size_mb / checked_s:,.0f}",
                    f"{size_mb / store_s:,.0f}",
                    f"{1000 * store_s:,.0f}",
                    f"{raw_s / store_s:.0%}",
                    f"{checked_s / store_s:.0%}",
                )


def _times_s(
    raw: Path, store: Path, blocks: Sequence[NewBlock], *, cold: bool
) -> tuple[float, float, float]:
    taken: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        times = []
        for measure in (
            partial(read_raw, raw),
            partial(_read_checked, store),
            partial(_load, store, blocks),
        ):
            if cold:
                forget_pages(raw.parent)
            times.append(measure())
        taken.append((times[0], times[1], times[2]))
    raw_s, checked_s, store_s = (statistics.median(times) for times in zip(*taken, strict=True))
    return raw_s, checked_s, store_s


def _read_checked(directory: Path) -> float:
    paths = sorted(path for path in directory.rglob("*.kv") if path.is_file())
    assert paths
    started_s = time.perf_counter()
    kept = []
    for path in paths:
        kept.append(path.read_bytes())
        hashlib.sha256(kept[-1]).digest()
    return time.perf_counter() - started_s


def _load(directory: Path, blocks: Sequence[NewBlock]) -> float:
    store = open_store(directory, Disk())
    store.scan()
    arrays = []
    started_s = time.perf_counter()
    for block in blocks:
        stored = store.get(block.hash, FINGERPRINT)
        assert isinstance(stored, StoredBlock), stored
        arrays.append(from_raw(stored.payload, stored.meta.tokens))
    spent_s = time.perf_counter() - started_s
    assert sum(each.nbytes for each in arrays) == sum(block.nbytes for block in blocks)
    return spent_s


if __name__ == "__main__":
    main()
