"""Scans, inspects and cleans a store from outside, safe beside a worker that uses it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from domain.kv.hashing import BlockHash
from domain.kv.places import NAMES_MAX, BlockPlaces
from ops.blockstore.blocks import (
    FAN_NAME,
    MODEL_NAME,
    BlockInfo,
    Rejected,
    RejectReason,
    block_path,
    model_of,
    parse_block,
    parse_draft,
)
from ops.blockstore.disk import Disk
from ops.blockstore.format import read_block
from ops.blockstore.index import BlockIndex

#: Age from which a draft is a leftover, even if a process with its writer's pid runs.
DRAFT_AGE_MAX_S = 3600.0


@dataclass(slots=True)
class Overview:
    """The content of a store's directory.

    Attributes:
        blocks: Every block by its name; of ``overview``, least recently used first.
        leftovers: Drafts of dead writers.
        foreign: How many files and directories do not belong to the store.
        orphans: Of ``overview``: blocks that no context can reach, because an ancestor is missing.
    """

    blocks: list[BlockInfo] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    foreign: int = 0
    orphans: list[BlockInfo] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Size of all blocks."""
        return sum(block.size_bytes for block in self.blocks)


def scan_directory(root: Path) -> Overview:
    """Scan the store at ``root``; a missing directory is an empty store."""
    found = Overview()
    if root.exists():
        for model in _directories(root, MODEL_NAME, found):
            for fan in _directories(Path(model.path), FAN_NAME, found):
                _scan_fan(fan, model.name, found)
    return found


def _directories(
    parent: Path, name: re.Pattern[str], found: Overview
) -> Iterator[os.DirEntry[str]]:
    with os.scandir(parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry
            else:
                found.foreign += 1


def _scan_fan(fan: os.DirEntry[str], model: str, found: Overview) -> None:
    with os.scandir(fan.path) as entries:
        for entry in entries:
            name = parse_block(entry.name)
            try:
                if name is None or entry.name[:2] != fan.name or not _is_file(entry):
                    _classify(entry, found)
                    continue
                stat = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process has just deleted it
            block = BlockInfo(*name, model, stat.st_size, stat.st_mtime_ns)
            found.blocks.append(block)


def _classify(entry: os.DirEntry[str], found: Overview) -> None:
    pid = parse_draft(entry.name)
    if pid is None or not _is_file(entry):
        found.foreign += 1
    elif not psutil.pid_exists(pid) or (
        time.time() - entry.stat(follow_symlinks=False).st_mtime > DRAFT_AGE_MAX_S
    ):
        found.leftovers.append(Path(entry.path))


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def overview(root: Path) -> Overview:
    """Scan the store at ``root`` without changing it."""
    found = scan_directory(root)
    index = BlockIndex()
    index.fill(found.blocks)
    found.blocks, found.orphans = list(index), index.orphans()
    return found


def verify(root: Path, blocks: Iterable[BlockInfo]) -> Iterator[tuple[BlockInfo, Rejected | None]]:
    """Read every byte of ``blocks`` and yield each with its fault, if it has one.

    A block that was evicted meanwhile counts as valid.
    """
    for info in blocks:
        block = read_block(block_path(root, info), info, None)
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
    """Return which blocks to delete, by reason.

    Args:
        models: Models whose blocks and checkpoints are all deleted.
    """
    doomed = {*models, *(one for one, of in companions(found.blocks).items() if of in models)}
    of_models = [block for block in found.blocks if block.model in doomed]
    left = BlockIndex()
    left.fill(block for block in found.blocks if block.model not in doomed)
    orphans = left.orphans()
    for block in orphans:
        left.remove(block.hash)
    excess = left.victims(left.size_bytes - budget_bytes)
    return {"model": of_models, "orphan": orphans, "cap": excess or []}


def companions(blocks: Iterable[BlockInfo]) -> dict[str, str]:
    """Return by its directory's name the model whose blocks a model continues.

    These are checkpoints: they have a fingerprint of their own, and their parents are blocks.
    """
    blocks = list(blocks)
    models = {block.hash: block.model for block in blocks}
    parents = ((block.model, models.get(block.parent or block.hash)) for block in blocks)
    return {one: of for one, of in parents if of is not None and of != one}


def with_descendants(blocks: Iterable[BlockInfo], hashes: Collection[BlockHash]) -> list[BlockInfo]:
    """Return the named blocks and all that build on them, checkpoints included."""
    index = BlockIndex()
    index.fill(blocks)
    names, found = set(hashes), []
    # A block is used whenever one that builds on it is, so it is at most as old.
    for block in reversed(list(index)):
        if block.hash in names or block.parent in names:
            names.add(block.hash)
            found.append(block)
    return found


def delete(root: Path, blocks: Iterable[BlockInfo]) -> None:
    """Delete the files of ``blocks`` for good; missing files are ignored."""
    changed = set()
    for info in blocks:
        path = block_path(root, info)
        path.unlink(missing_ok=True)
        changed.add(path.parent)
    # A power cut could bring back a file whose directory was not synced.
    Disk().sync_directories(changed)


def erase_blocks(names: Collection[str], *, places: BlockPlaces | None, root: Path) -> int:
    """Delete blocks and what builds on them; return the number of deleted files.

    What builds on them goes too: checkpoints, and blocks of jobs that never completed.

    Args:
        names: 64 hex digits each.
        places: The workers that run; ``None`` if none does.

    Raises:
        OSError: A file cannot be deleted.
        QueueUnavailable: The broker cannot be reached.
    """
    if not names:
        return 0
    blocks = {BlockHash(bytes.fromhex(digits)) for digits in names}
    found = overview(root).blocks if root.is_dir() else ()
    doomed = with_descendants(found, blocks)
    delete(root, doomed)
    if places is not None:
        every = sorted(blocks.union(block.hash for block in doomed))
        for first in range(0, len(every), NAMES_MAX):
            places.forget(every[first : first + NAMES_MAX])
    return len(doomed)


def delete_leftovers(found: Overview) -> None:
    """Delete the drafts of dead writers; errors are ignored."""
    for path in found.leftovers:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
