"""The lock of a data directory, which the system releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from domain.errors import Conflict


class DataDirLocked(Conflict):
    """Another process holds the lock; ``pid`` is ``None`` if its pid is not written yet."""

    code = "data_dir_locked"

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path.parent} is in use: {holder} holds {path.name}")
        self.pid = pid


class DataLock:
    """An exclusive ``flock`` with the holder's pid in the file.

    The file stays after the release: if it were removed, two processes could lock two files of one
    name.

    Args:
        path: The lock file, e.g. ``<data_dir>/worker.lock``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Acquire the lock without waiting.

        Raises:
            DataDirLocked: Another process holds it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            pid = int(holder) if holder.isdigit() else None
            raise DataDirLocked(self._path, pid) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
