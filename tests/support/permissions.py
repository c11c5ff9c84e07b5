"""The umask of a test, and files that other users may open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Use a umask inside the block; what the block sets ends with it."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def readable_by_others(directory: Path) -> list[str]:
    """Return the files that another user of the machine can open through this directory."""
    found = []
    for path in sorted(directory.iterdir()):
        mode = path.lstat().st_mode
        if mode & 0o077:
            found.append(path.name)
        if path.is_dir() and mode & 0o011:
            found += [f"{path.name}/{name}" for name in readable_by_others(path)]
    return found
