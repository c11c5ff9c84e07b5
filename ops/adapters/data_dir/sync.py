"""Makes files and directory entries durable."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Create a directory, readable by the owner only, whose name survives a power cut.

    Missing directories above it are created too; an existing directory stays as it is.
    """
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in reversed(missing):
        sync_directory(one.parent)


def sync_file(path: Path) -> None:
    """Sync a file, so that its content survives a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_drive(descriptor: int) -> None:
    """Sync an open file and the cache of its drive, so that no later write overtakes it."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that its entries survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
