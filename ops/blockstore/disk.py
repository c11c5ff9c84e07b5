"""Writes files that are complete or absent: draft, sync, rename, sync of the directory.

A killed process leaves only drafts and complete files. Files survive a power cut, since the data
reaches the disk before the name. On Linux ``fsync`` flushes the drive's cache; on macOS only
``F_FULLFSYNC`` does, for all data sent to the drive before, so a group of files needs one call. If
a drive ignores the flush, the checksum of the block detects it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from domain.errors import Unavailable
from ops.blockstore.blocks import draft_path
from ops.data_dir.permissions import sync_directory, sync_file

#: Most buffers in one system call; every platform takes as many.
_BUFFERS_AT_ONCE = 512


class DiskUnavailable(Unavailable):
    """The disk refused a file; no file is left under its name.

    Attributes:
        errno_name: E.g. ``ENOSPC``.
    """

    retryable = True

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.errno_name = errno.errorcode.get(error.errno or 0, type(error).__name__)


class Disk:
    """Writes groups of files.

    Args:
        sync: Whether a file must survive a power cut. Without it a killed process still leaves
            only complete files.
    """

    def __init__(self, *, sync: bool = True) -> None:
        self._sync = sync

    def write_group(
        self, files: Sequence[tuple[Path, Sequence[bytes | memoryview]]], *, time_ns: int
    ) -> None:
        """Write new ``files`` and rename them to their names, in order.

        Args:
            time_ns: Their mtime, in nanoseconds since 1970.

        Raises:
            OSError: A write failed; none of the files is left.
        """
        drafts: list[tuple[Path, Path]] = []
        changed: set[Path] = set()
        try:
            for path, buffers in files:
                changed |= _make_directory(path.parent)
                drafts.append((draft_path(path.parent), path))
                self.write_draft(drafts[-1][0], buffers)
                os.utime(drafts[-1][0], ns=(time_ns, time_ns))
            for draft, _ in drafts if self._sync else ():
                sync_file(draft, with_drive=draft == drafts[-1][0])
            for draft, path in drafts:
                draft.replace(path)
            self.sync_directories(changed)
        except OSError:
            for path in (each for pair in drafts for each in pair):
                # Best effort: the next scan deletes drafts, and renamed files are complete.
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            raise

    def write_draft(self, path: Path, buffers: Sequence[bytes | memoryview]) -> None:
        """Write a new file without syncing it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for first in range(0, len(buffers), _BUFFERS_AT_ONCE):
                left = [memoryview(one) for one in buffers[first : first + _BUFFERS_AT_ONCE]]
                while left:
                    _drop_front(left, os.writev(descriptor, left))
        finally:
            os.close(descriptor)

    def sync_directories(self, paths: Iterable[Path]) -> None:
        """Make the names in directories survive a power cut."""
        for path in paths if self._sync else ():
            sync_directory(path)


class RegularFile:
    """A regular file opened for reading; it refuses links and pipes.

    It is read, not mapped: a process crashes if another one truncates a file that it has mapped.

    Raises:
        OSError: The file is missing, is not a regular file, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        self.size_bytes = found.st_size
        if not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def read(self, length: int) -> bytes:
        """Return the next ``length`` bytes, fewer at the end of the file."""
        left = length
        parts = []
        while left > 0 and (part := os.read(self._descriptor, left)):
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, buffers: Sequence[memoryview]) -> bool:
        """Fill ``buffers`` with the next bytes; return whether the file had enough of them."""
        left = [buffer for buffer in buffers if buffer.nbytes]
        while left:
            count = os.readv(self._descriptor, left[:_BUFFERS_AT_ONCE])
            if not count:
                return False
            _drop_front(left, count)
        return True

    def expect_whole(self) -> None:
        """Announce that the whole file will be read, where the system has a call for it.

        After a small first read Linux otherwise begins with single pages. Reading a cold file then
        took five times the processor time, measured on ext4 with Linux 6.18.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def rewind(self) -> None:
        """Return to the first byte."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def _make_directory(path: Path) -> set[Path]:
    """Create a directory and return every directory with a new entry, itself included."""
    changed = {path}
    above = path
    while not above.exists():
        above = above.parent
        changed.add(above)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return changed


def _drop_front(buffers: list[memoryview], count: int) -> None:
    """Remove the first ``count`` bytes of consecutive buffers."""
    while buffers and count >= buffers[0].nbytes:
        count -= buffers.pop(0).nbytes
    if count:
        buffers[0] = buffers[0][count:]
