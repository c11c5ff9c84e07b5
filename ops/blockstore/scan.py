"""Scans a store's directory by names and sizes, without opening files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ops.blockstore.blocks import BlockInfo
from ops.blockstore.names import is_fan, is_model, parse_block, parse_draft

#: Age from which a draft is a leftover, even if a process with its writer's pid runs.
DRAFT_AGE_MAX_S = 3600.0


@dataclass(slots=True)
class ScannedDirectory:
    """The result of a scan.

    Attributes:
        blocks: Every block by its name.
        leftovers: Drafts of dead writers.
        foreign: How many files and directories do not belong to the store.
    """

    blocks: list[BlockInfo] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    foreign: int = 0


def scan_directory(root: Path) -> ScannedDirectory:
    """Scan the store at ``root``; a missing directory is an empty store.

    Raises:
        OSError: A directory cannot be read.
    """
    found = ScannedDirectory()
    if root.exists():
        for model in _directories(root, is_model, found):
            for fan in _directories(Path(model.path), is_fan, found):
                _scan_fan(fan, model.name, found)
    return found


def _directories(
    parent: Path, accepts: Callable[[str], bool], found: ScannedDirectory
) -> Iterator[os.DirEntry[str]]:
    with os.scandir(parent) as entries:
        for entry in entries:
            if accepts(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry
            else:
                found.foreign += 1


def _scan_fan(fan: os.DirEntry[str], model: str, found: ScannedDirectory) -> None:
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


def _classify(entry: os.DirEntry[str], found: ScannedDirectory) -> None:
    pid = parse_draft(entry.name)
    if pid is None or not _is_file(entry):
        found.foreign += 1
    elif not _is_alive(pid) or _age_s(entry) > DRAFT_AGE_MAX_S:
        found.leftovers.append(Path(entry.path))


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _age_s(entry: os.DirEntry[str]) -> float:
    return time.time() - entry.stat(follow_symlinks=False).st_mtime
