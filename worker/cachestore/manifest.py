"""The manifest of a finished job: the blocks that hold its context on disk.

Rule: a manifest names a block only after the block's file is synced, renamed, and its directory
synced, and a block never changes. So after a crash at any instant, the last manifest in the log
names complete blocks, and so does every older one. Blocks without a manifest do no harm. Eviction
may remove blocks of a manifest later, the end first; a reader uses the beginning that is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from domain.kv.hashing import HASH_BYTES, BlockHash
from worker.cachestore.writer import WriteBehind

#: Most blocks that a manifest read from outside may name: 16 million tokens.
MANIFEST_BLOCKS_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The blocks of one context.

    Attributes:
        fingerprint: Block fingerprint.
        blocks: Hashes of the whole blocks, in order.
        tail: Hash of the last, partial block, ``None`` if there is none.
    """

    fingerprint: str
    blocks: tuple[BlockHash, ...]
    tail: BlockHash | None = None

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """All hashes, in order."""
        return self.blocks if self.tail is None else (*self.blocks, self.tail)

    def cut(self, stored: Collection[BlockHash]) -> Manifest:
        """Return the beginning that can be restored from the blocks in ``stored``."""
        count = next(
            (at for at, each in enumerate(self.blocks) if each not in stored), len(self.blocks)
        )
        whole = count == len(self.blocks)
        tail = self.tail if whole and self.tail in stored else None
        return replace(self, blocks=self.blocks[:count], tail=tail)

    def to_data(self) -> dict[str, Any]:
        """Return the manifest as plain JSON values."""
        return {
            "fingerprint": self.fingerprint,
            "blocks": [each.hex() for each in self.blocks],
            "tail": self.tail.hex() if self.tail else None,
        }


def manifest_from(data: Mapping[str, Any]) -> Manifest:
    """Return the manifest that ``to_data`` encoded.

    Raises:
        ValueError: The data is not a manifest.
    """
    fingerprint, blocks, tail = (data.get(name) for name in ("fingerprint", "blocks", "tail"))
    if not isinstance(fingerprint, str) or not isinstance(blocks, list):
        msg = "a manifest has a fingerprint and a list of blocks"
        raise ValueError(msg)  # noqa: TRY004 - the data is wrong, not the program
    if len(blocks) > MANIFEST_BLOCKS_MAX:
        msg = f"a manifest of {len(blocks)} blocks is too long"
        raise ValueError(msg)
    return Manifest(
        fingerprint=fingerprint,
        blocks=tuple(_hash(each) for each in blocks),
        tail=None if tail is None else _hash(tail),
    )


def sealed(writer: WriteBehind, manifest: Manifest) -> Future[Manifest]:
    """Return the manifest cut to the blocks on disk, once their writes have ended.

    Only a sealed manifest may be appended to the log.
    """
    result: Future[Manifest] = Future()

    def finish(stored: Future[frozenset[BlockHash]]) -> None:
        result.set_result(manifest.cut(stored.result()))

    writer.when_written(manifest.hashes).add_done_callback(finish)
    return result


def _hash(digits: object) -> BlockHash:
    if not isinstance(digits, str) or len(digits) != 2 * HASH_BYTES:
        msg = "a block hash has 64 hex digits"
        raise ValueError(msg)
    return BlockHash(bytes.fromhex(digits))
