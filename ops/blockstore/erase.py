"""Deletes blocks by name: in the memory and on the disk of the workers, and on this disk."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from domain.kv.hashing import BlockHash
from domain.kv.places import NAMES_MAX, BlockPlaces
from ops.blockstore import maintenance


def erase_blocks(names: Collection[str], *, places: BlockPlaces | None, root: Path) -> int:
    """Delete blocks and what builds on them; return the number of deleted files.

    What builds on them goes too: checkpoints, and blocks of jobs that never completed.

    Args:
        names: 64 hex digits each.
        places: The workers that run; ``None`` if none does.
        root: The block files of this machine.

    Raises:
        OSError: A file cannot be deleted.
        QueueUnavailable: The broker cannot be reached.
    """
    if not names:
        return 0
    blocks = {BlockHash(bytes.fromhex(digits)) for digits in names}
    found = maintenance.overview(root).blocks if root.is_dir() else ()
    doomed = maintenance.with_descendants(found, blocks)
    maintenance.delete(root, doomed)
    if places is not None:
        every = sorted(blocks.union(block.hash for block in doomed))
        for first in range(0, len(every), NAMES_MAX):
            places.forget(every[first : first + NAMES_MAX])
    return len(doomed)
