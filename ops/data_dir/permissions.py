"""Files of the data directory: for their owner only, and durable."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
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
DIRECTORIES: Final = ("archive", "broker", "cache", "clients", "logs", "tmp")
#: Files that may be links: a database on another disk, and secrets that are mounted.
_LINKABLE: Final = ("events.sqlite3", "heads.key", "webhooks.key")


def create_private_files() -> int:
    """Let this process and its children create files for their owner only; call in each ``main``.

    Returns:
        The umask before.
    """
    return os.umask(PRIVATE_UMASK)


def use_own_temporary_directory(data_dir: Path) -> None:
    """Let this process keep its temporary files in the data directory.

    MLX compiles kernels for the CPU into the temporary directory, and loads what has their names
    there. In a directory of all users, another user could put a library in that place, or own it
    and keep this one out. A directory in ``TMPDIR`` that only this user can change stays. Where the
    data directory cannot be written, the process gets a new directory of its own.
    """
    named = os.environ.get("TMPDIR")
    if named is not None and _is_own_directory(Path(named)):
        return
    directory = data_dir.absolute() / "tmp"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="semantic-"))
    os.environ["TMPDIR"] = str(directory)


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


def drop_links(data_dir: Path) -> None:
    """Delete links in the places of files that the service writes; call before it writes one.

    Another user may have put one there before the directory was closed, or a directory may be a
    copy from elsewhere: a lock, a log file or a draft would be written to what it points to.
    """
    inner = (data_dir / name for name in ("broker", "logs"))
    below = (path for directory in inner if directory.is_dir() for path in directory.iterdir())
    for path in (*_ours(data_dir), *below):
        if path.is_symlink() and path.name not in (*DIRECTORIES, *_LINKABLE):
            path.unlink(missing_ok=True)


def _ours(data_dir: Path) -> Iterator[Path]:
    try:
        paths = sorted(data_dir.iterdir())
    except OSError:
        return
    for path in paths:
        name = path.name
        if name in DIRECTORIES or any(fnmatchcase(name, pattern) for pattern in FILES):
            yield path


def _is_own_directory(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    others_write = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & others_write
    )


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


def make_directory(directory: Path) -> None:
    """Create a directory, readable by the owner only, whose name survives a power cut.

    Missing directories above it are created too; an existing directory stays as it is.
    """
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in reversed(missing):
        sync_directory(one.parent)


def sync_file(path: Path, *, with_drive: bool = False) -> None:
    """Sync a file, so that its content survives a power cut; see ``sync_drive``."""
    with path.open("rb") as file:
        (sync_drive if with_drive else os.fsync)(file.fileno())


def sync_drive(descriptor: int) -> None:
    """Sync an open file and the cache of its drive, so that no later write overtakes it."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that its entries survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Replace a small file at once: a reader gets the old content or the new one.

    Args:
        is_durable: Whether a power cut leaves the old content or the new one too.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    if is_durable:
        sync_file(fresh)
    fresh.replace(path)
    if is_durable:
        sync_directory(path.parent)


def write_once(file: Path, text: str) -> None:
    """Write a file that only its owner may read; an existing file stays as it is."""
    make_directory(file.parent)
    # Written under another name first, so that no process reads an incomplete secret.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process has written it first
    finally:
        draft.unlink()
    # Data signed with the secret survives a power cut, so the secret must too.
    sync_directory(file.parent)
