"""Permissions of the service's files: for their owner only.

A directory that existed before may be readable by other users, and so may the files that an earlier
version wrote into it. Only names that the service uses itself are changed there, since the
directory may have other files of the user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

#: Bits that a process takes from each file and directory that it creates.
PRIVATE_UMASK: Final = 0o077
#: Names of files in the data directory; SQLite and atomic writes add suffixes.
FILES: Final = (
    "api.counters.json*",
    "api.lock",
    "digests*",
    "events.sqlite3*",
    "heads.jsonl*",
    "heads.last*",
    "heads.key*",
    "serve.json*",
    "serve.lock",
    "steps*",
    "webhooks.key*",
    "worker.counters.json*",
    "worker.json*",
    "worker.lock",
    "worker.step*",
)
#: Directories there. What lies in them cannot be reached through a closed directory.
DIRECTORIES: Final = ("archive", "broker", "cache", "logs")


def create_private_files() -> int:
    """Let this process and its children create files for their owner only; call in each ``main``.

    Returns:
        The umask before.
    """
    return os.umask(PRIVATE_UMASK)


def open_to_others(data_dir: Path) -> tuple[Path, ...]:
    """Return the service's files and directories that other users may read or change."""
    return tuple(path for path in _ours(data_dir) if _is_open(path))


def tighten(data_dir: Path) -> tuple[Path, ...]:
    """Take all permissions of other users from the service's files and directories.

    Returns:
        Those that stay open: they belong to another user.
    """
    for path in open_to_others(data_dir):
        with suppress(OSError):
            _close(path)
    return open_to_others(data_dir)


def _ours(data_dir: Path) -> Iterator[Path]:
    try:
        paths = sorted(data_dir.iterdir())
    except OSError:
        return
    for path in paths:
        name = path.name
        if name in DIRECTORIES or any(fnmatchcase(name, pattern) for pattern in FILES):
            yield path


def _is_open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False  # it has just been deleted
    is_regular = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return is_regular and bool(mode & PRIVATE_UMASK)


def _close(path: Path) -> None:
    # A descriptor: a link that takes the place of the file is not followed.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.fchmod(descriptor, mode & ~PRIVATE_UMASK)
    finally:
        os.close(descriptor)
