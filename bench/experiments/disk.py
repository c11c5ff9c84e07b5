"""Writes contexts to the disk and reads them, next to the raw disk."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.block_store import FINGERPRINT
from bench.experiments.report import print_verdict
from bench.kv_moves import blocks_of, filled
from domain.kv.hashing import BlockHash, block_hash
from domain.kv.spec import BLOCK_TOKENS
from ops.blockstore.blocks import NewBlock
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.raw import to_raw

#: Blocks that the store syncs together, as the write-behind does.
GROUP = 16
#: Share of the disk's own speed that is the goal.
SHARE_MIN = 0.8
#: As ``dd bs=1M``.
PIECE_BYTES = 1 << 20


def print_disk_verdict(doing: str, shares: Sequence[float]) -> None:
    """Print which shares of the raw disk's speed were reached."""
    print_verdict(
        reached=min(shares) >= SHARE_MIN,
        why=f"the store {doing} at {min(shares):.0%} to {max(shares):.0%} of the raw disk's speed"
        f" (goal: {SHARE_MIN:.0%}).",
    )


def context_blocks(tokens: int) -> list[BlockArrays]:
    """Return the blocks of a context of noise."""
    return blocks_of(filled(tokens), tokens)


def to_new_blocks(blocks: Sequence[BlockArrays]) -> list[NewBlock]:
    """Return the blocks as the engine hands them to the store."""
    made: list[NewBlock] = []
    parent: BlockHash | None = None
    for at, block in enumerate(blocks):
        ids = range(at, at + BLOCK_TOKENS)
        name = block_hash(FINGERPRINT, parent, ids)
        made.append(
            NewBlock(
                hash=name,
                parent=parent,
                fingerprint=FINGERPRINT,
                token_ids=ids,
                payload=to_raw(block),
            )
        )
        parent = name
    return made


def write_raw(path: Path, size_bytes: int) -> float:
    """Write one file and sync it once, as ``dd conv=fsync``; return the seconds."""
    piece = os.urandom(PIECE_BYTES)
    started_s = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size_bytes // PIECE_BYTES):
            file.write(piece)
        file.write(piece[: size_bytes % PIECE_BYTES])
        os.fsync(file.fileno())
    return time.perf_counter() - started_s


def read_raw(path: Path) -> float:
    """Read one file piece by piece into the same memory, as ``dd of=/dev/null``."""
    piece = bytearray(PIECE_BYTES)
    started_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass
    return time.perf_counter() - started_s


def forget_pages(directory: Path) -> bool:
    """Drop the system's page cache for a file; return whether the system supports that."""
    os.sync()
    if sys.platform != "linux":
        return False
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


@contextmanager
def scratch() -> Iterator[Callable[[str], Path]]:
    """Yield a function that names new places on the disk; all are deleted in the end."""
    with tempfile.TemporaryDirectory() as directory:
        taken = 0

        def place(name: str) -> Path:
            nonlocal taken
            taken += 1
            os.sync()  # so that the next measurement does not write data of the last one
            return Path(directory) / f"{name}-{taken}"

        yield place
