"""Blocks for tests of the block store."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from domain.kv.hashing import BlockHash, block_hash
from ops.blockstore.blocks import NewBlock, RawTensor
from ops.blockstore.disk import Disk

FINGERPRINT = "sha256:" + "a1" * 32
OTHER_FINGERPRINT = "sha256:" + "b2" * 32


def make_block(
    token_ids: Sequence[int] = (5, 6, 7),
    *,
    parent: BlockHash | None = None,
    fingerprint: str = FINGERPRINT,
    size_bytes: int = 64,
) -> NewBlock:
    """Return a block with two tensors.

    Args:
        token_ids: What it covers.
        parent: The block before it.
        fingerprint: Whose it is.
        size_bytes: Of both tensors, a multiple of four; the file is a little longer.
    """
    name = block_hash(fingerprint, parent, token_ids)
    half = size_bytes // 4 * 2
    data = (hashlib.sha256(name).digest() * (size_bytes // 32 + 1))[:size_bytes]
    return NewBlock(
        hash=name,
        parent=parent,
        fingerprint=fingerprint,
        token_ids=token_ids,
        payload={
            "keys": RawTensor("BF16", (half // 2,), data[:half]),
            "values": RawTensor("U8", (2, (size_bytes - half) // 2), memoryview(data)[half:]),
        },
    )


def make_chain(
    start: int, length: int, *, size_bytes: int = 64, fingerprint: str = FINGERPRINT
) -> list[NewBlock]:
    """Return the blocks of one context; each ``start`` gives a different context."""
    blocks: list[NewBlock] = []
    for at in range(length):
        parent = blocks[-1].hash if blocks else None
        blocks.append(
            make_block((start, at), parent=parent, size_bytes=size_bytes, fingerprint=fingerprint)
        )
    return blocks


def make_checkpoint(
    chain: Sequence[NewBlock], *, size_bytes: int = 64, tokens: int = 1
) -> NewBlock:
    """Return a checkpoint after the blocks of a context; its fingerprint is not theirs."""
    parent = chain[-1].hash if chain else None
    ids = tuple(range(900, 900 + tokens))
    return make_block(ids, parent=parent, fingerprint=OTHER_FINGERPRINT, size_bytes=size_bytes)


class FailingDisk(Disk):
    """A disk that fails every write from a chosen one on, until ``heal``."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.writes_left: int | None = None
        self.errno = errno.ENOSPC

    def write_draft(self, path: Path, buffers: Sequence[bytes | memoryview]) -> None:
        """Write half of the file when the disk is full, as a real disk does."""
        if self.writes_left == 0:
            super().write_draft(path, [memoryview(buffers[0])[: len(buffers[0]) // 2]])
            raise OSError(self.errno, os.strerror(self.errno))
        if self.writes_left is not None:
            self.writes_left -= 1
        super().write_draft(path, buffers)
