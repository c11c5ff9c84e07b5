"""Free space on the disk of the log, and the floor below which new work is refused.

Three marks, from the top: below ``cache_min_bytes`` the worker deletes contexts from the disk and
writes no more; below ``free_min_bytes``, or while the reserve is not held, new work is refused;
once a commit fails, the reserve is freed for the ends of running jobs, cancels and deletions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from domain.errors import DiskFull
from ops.adapters.data_dir.reserve import Reserve
from ops.setting_groups.disk import MB, DiskSettings

#: 2^20 bytes that a file holds until the disk is full, so that ends of running jobs, cancels and
#: deletions are still recorded.
RESERVE_MB: Final = 16
#: Free space that a start of the service takes at least.
START_BYTES: Final = MB


def free_bytes(directory: Path) -> int:
    """Return the free space where a directory is or will be, in bytes."""
    nearest = directory.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return shutil.disk_usage(nearest).free


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFloor:
    """The space that the disk of the log keeps free.

    Attributes:
        measure: Returns the free space of the disk, in bytes.
        free_min_bytes: Space below which new work is refused; 0 for any.
        cache_min_bytes: Space below which the worker deletes contexts from the disk.
        reserve: Held for the ends of running jobs; ``None`` where there is none.
        reserve_bytes: Its size.
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
        """Check that new work is accepted.

        Raises:
            DiskFull: It is not.
        """
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
