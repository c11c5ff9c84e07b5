"""EXP-008: what does saving a context cost?  ``python -m bench.experiments.exp008``.

Contexts of the KV shape of SmolLM2-135M, each way in turn, medians. The baseline ``raw`` writes the
same bytes into one file and syncs once; ``files`` writes a file for each block and syncs each;
``store`` is the engine's write-behind: checksums, synced in groups of 16, renamed, directories
synced.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.block_store import plain_write, put
from bench.experiments.disk import (
    GROUP,
    context_blocks,
    print_disk_verdict,
    scratch,
    to_new_blocks,
    write_raw,
)
from bench.experiments.report import median_s, print_conditions, print_table
from bench.kv_moves import CONTEXTS
from ops.blockstore.blocks import NewBlock
from ops.blockstore.disk import Disk

ROUNDS = 3


def main() -> None:
    """Print the table."""
    started_s = time.monotonic()
    shares: list[float] = []
    print_table(
        (
            ">tokens",
            ">MB",
            ">raw MB/s",
            ">files MB/s",
            ">store MB/s",
            ">store ms",
            ">of raw",
            ">of files",
            ">engine thread ms a block",
        ),
        _rows(shares),
    )
    print_disk_verdict("writes", shares)
    print_conditions(started_s)


def _rows(shares: list[float]) -> Iterator[tuple[object, ...]]:
    for tokens in CONTEXTS:
        arrays = context_blocks(tokens)
        handing_ms = 1000 * median_s(partial(to_new_blocks, arrays), 5) / len(arrays)
        blocks = to_new_blocks(arrays)
        size_mb = sum(block.nbytes for block in blocks) / 1e6
        raw_s, files_s, store_s = _times_s(blocks)
        shares.append(raw_s / store_s)
        yield (
            tokens,
            f"{size_mb:.0f}",
            f"{size_mb / raw_s:.0f}",
            f"{size_mb / files_s:.0f}",
            f"{size_mb / store_s:.0f}",
            f"{1000 * store_s:,.0f}",
            f"{raw_s / store_s:.0%}",
            f"{files_s / store_s:.0%}",
            f"{handing_ms:.2f}",
        )


def _times_s(blocks: list[NewBlock]) -> tuple[float, float, float]:
    size_bytes = sum(block.nbytes for block in blocks)
    taken: list[tuple[float, float, float]] = []
    with scratch() as place:
        for _ in range(ROUNDS):
            raw, files, store = (place(name) for name in ("raw", "files", "store"))
            raw_s = write_raw(raw, size_bytes)
            _delete(raw)
            files_s = plain_write(files, blocks, sync=True)
            _delete(files)
            taken.append((raw_s, files_s, put(store, blocks, Disk(), group=GROUP)))
            _delete(store)
    raw_s, files_s, store_s = (statistics.median(times) for times in zip(*taken, strict=True))
    return raw_s, files_s, store_s


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


if __name__ == "__main__":
    main()
