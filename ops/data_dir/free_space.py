"""Free space on the disk of the log: the floor below which new work is refused, and its reserve."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from domain.errors import DiskFull
from ops.data_dir.permissions import sync_directory
from ops.settings.service import MB, DiskSettings

#: Bytes of one write; random, since some file systems store no zeros.
_CHUNK_BYTES: Final = 1024 * 1024


class Reserve:
    """A file of a known size that any process may delete when its space is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def beside(cls, log_file: Path) -> Reserve:
        """Return the reserve of a log file, on the same disk."""
        return cls(log_file.with_name(log_file.name + ".reserve"))

    def exists(self) -> bool:
        """Whether the space is held."""
        return self._path.exists()

    def release(self) -> bool:
        """Free the space; return whether it was held."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def hold(self, size_bytes: int) -> bool:
        """Hold the space if it is not held; return whether it is, after the call.

        The file appears under its name once all of it is on the disk.
        """
        if self.exists():
            return True
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            _write(draft, size_bytes)
            draft.replace(self._path)
            sync_directory(self._path.parent)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            return False
        return True


def _write(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            file.write(os.urandom(min(_CHUNK_BYTES, size_bytes - start)))
        file.flush()
        os.fsync(file.fileno())


#: 2^20 bytes that a file holds until the disk is full, so that ends of running jobs, cancels and
#: deletions are still recorded.
RESERVE_MB: Final = 16
#: Free space that a start of the service takes at least.
START_BYTES: Final = MB


def nearest_existing(path: Path) -> Path:
    """Return a path, or the nearest directory above it that exists."""
    nearest = path.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest


def free_bytes(directory: Path) -> int:
    """Return the free space where a directory is or will be, in bytes."""
    return shutil.disk_usage(nearest_existing(directory)).free


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFloor:
    """The space that the disk of the log keeps free.

    Attributes:
        free_min_bytes: Space below which new work is refused; 0 for any.
        cache_min_bytes: Space below which the worker deletes contexts from the disk.
        reserve: Held for the ends of running jobs; ``None`` where there is none.
    """

    measure: Callable[[], int]
    free_min_bytes: int = 0
    cache_min_bytes: int = 0
    reserve: Reserve | None = None
    reserve_bytes: int = 0

    def shortage(self) -> str | None:
        """Return why new work is refused; ``None`` if it is accepted."""
        free = self.measure()
        if free < self.free_min_bytes:
            return (
                f"{_mb(free)} are free on the disk of the event log, less than "
                f"{_mb(self.free_min_bytes)} (disk.free_min_mb)"
            )
        if self.reserve is not None and not self.reserve.exists():
            return (
                f"the disk of the event log was full, and {_mb(self.reserve_bytes)} for the ends "
                "of jobs are not reserved again yet"
            )
        return None

    def require_space(self) -> None:
        """Check that new work is accepted."""
        if (why := self.shortage()) is not None:
            raise DiskFull(f"no new work is accepted: {why}")

    def make_way(self) -> None:
        """Free the reserve if the disk is full: a service that starts writes files of its own."""
        if self.reserve is not None and self.measure() < START_BYTES:
            self.reserve.release()

    def renew(self) -> None:
        """Hold the reserve again if there is space for it above the floor."""
        if self.reserve is None or self.reserve.exists():
            return
        if self.measure() - self.reserve_bytes >= self.free_min_bytes:
            self.reserve.hold(self.reserve_bytes)


def floor_of(disk: DiskSettings, *, log_file: Path | None, data_dir: Path) -> DiskFloor:
    """Return the floor of the disk that has the event log.

    Args:
        log_file: ``None`` where a database server has the log; there is no reserve then.
        data_dir: Measured where there is no log file.
    """
    return DiskFloor(
        measure=partial(free_bytes, data_dir if log_file is None else log_file.parent),
        free_min_bytes=disk.free_min_mb * MB,
        cache_min_bytes=disk.cache_min_bytes,
        reserve=Reserve.beside(log_file) if log_file is not None else None,
        reserve_bytes=RESERVE_MB * MB,
    )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes // MB} MiB"
