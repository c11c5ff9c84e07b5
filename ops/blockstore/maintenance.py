"""Looking at a store from outside, beside a worker that may be using it; nothing here evicts."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ops.blockstore.blocks import BlockInfo, Rejected, RejectReason, model_of
from ops.blockstore.index import BlockIndex
from ops.blockstore.names import BlockName, block_path
from ops.blockstore.reader import read_block
from ops.blockstore.scan import scan_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What lies in a store's directory.

    Attributes:
        blocks: Least recently used first.
        orphans: Blocks that cannot be reached because one before them is gone.
        leftovers: Drafts of dead writers.
        foreign: How many files are not the store's.
    """

    blocks: tuple[BlockInfo, ...]
    orphans: tuple[BlockInfo, ...]
    leftovers: tuple[Path, ...]
    foreign: int

    @property
    def size_bytes(self) -> int:
        """Size of all blocks."""
        return sum(block.size_bytes for block in self.blocks)


def overview(root: Path) -> Overview:
    """Look through the store at ``root`` and change nothing.

    Raises:
        OSError: A directory cannot be read.
    """
    found = scan_directory(root)
    index = BlockIndex()
    index.fill(found.blocks)
    return Overview(
        blocks=tuple(index),
        orphans=tuple(index.orphans()),
        leftovers=tuple(found.leftovers),
        foreign=found.foreign,
    )


def verify(root: Path, blocks: Iterable[BlockInfo]) -> Iterator[tuple[BlockInfo, Rejected | None]]:
    """Read every byte of ``blocks`` and yield each with what is wrong with it, if anything is.

    A block that was evicted meanwhile counts as good.
    """
    for info in blocks:
        block = read_block(path_of(root, info), info, None)
        if block is None or isinstance(block, Rejected):
            yield info, block
        elif model_of(block.meta.fingerprint) != info.model:
            detail = f"made by {block.meta.fingerprint}"
            yield info, Rejected(RejectReason.WRONG_FINGERPRINT, detail)
        else:
            yield info, None


def plan_gc(
    found: Overview, *, budget_bytes: int, models: Collection[str] = ()
) -> dict[str, list[BlockInfo]]:
    """Return which blocks to delete, by the reason for it.

    Args:
        found: What is there.
        budget_bytes: Most bytes to leave.
        models: Models of which nothing is to be left.
    """
    of_models = [block for block in found.blocks if block.model in models]
    orphans = [block for block in found.orphans if block.model not in models]
    gone = {block.hash for block in (*of_models, *orphans)}
    left = BlockIndex()
    left.fill(block for block in found.blocks if block.hash not in gone)
    excess = left.victims(left.size_bytes - budget_bytes)
    return {"model": of_models, "orphan": orphans, "cap": excess or []}


def delete(root: Path, blocks: Iterable[BlockInfo]) -> None:
    """Delete the files of ``blocks``; one that is gone already is as good.

    Raises:
        OSError: One could not be deleted.
    """
    for info in blocks:
        path_of(root, info).unlink(missing_ok=True)


def delete_leftovers(found: Overview) -> None:
    """Delete the drafts of dead writers; what cannot be deleted stays for the next time."""
    for path in found.leftovers:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def path_of(root: Path, info: BlockInfo) -> Path:
    """Return where a block lies below ``root``."""
    return block_path(root, info.model, BlockName(info.hash, info.parent, info.tokens))
