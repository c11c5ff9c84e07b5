"""The lock of a data directory, and the identity of its worker."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import time
from pathlib import Path
from typing import Self

from domain.errors import Conflict
from domain.values import WorkerId
from ops.data_dir.permissions import replace_file

_POLL_S = 0.05


class DataDirLocked(Conflict):
    """Another process holds the lock; ``pid`` is ``None`` if its pid is not written yet."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path.parent} is in use: {holder} holds {path.name}")
        self.pid = pid


class DataLock:
    """An exclusive ``flock`` with the holder's pid in the file.

    The file stays after the release: if it were removed, two processes could lock two files of one
    name.
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

    def acquire_within(self, timeout_s: float) -> Self:
        """Acquire the lock, and wait for its holder; for a ``with``.

        Raises:
            DataDirLocked: Another process holds it for longer.
        """
        deadline = time.monotonic() + timeout_s
        while self._descriptor is None:
            try:
                self.acquire()
            except DataDirLocked:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        return self

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        if self._descriptor is None:
            self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


_TOKEN_BYTES = 8


class WorkerIdentity:
    """The file that names the directory's consumer at the broker and the directory's last worker.

    Only the process that holds the worker lock reads and writes the file. A new worker of the same
    directory gets the same broker id, so it finds the messages that the last one left in hand. A
    copy of the directory on another host gets a broker id of its own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._host = platform.node()
        stored = _read(path)
        is_same_host = stored.get("host") == self._host
        #: Id of the consumer whose in-hand set this directory's worker owns.
        self.broker_id = stored.get("hand", "") if is_same_host else ""
        #: The last worker of this directory on this host; ``None`` if there was none.
        self.previous_worker = (
            WorkerId(stored["worker"]) if is_same_host and "worker" in stored else None
        )
        if not self.broker_id:
            self.broker_id = f"engine-{secrets.token_hex(_TOKEN_BYTES)}"

    def record(self, worker: WorkerId) -> None:
        """Write ``worker`` as the present worker of the directory."""
        content = {"host": self._host, "hand": self.broker_id, "worker": worker}
        replace_file(self._path, json.dumps(content))

    def forget(self) -> None:
        """Name no worker: the present one ends in order although it may be within a load."""
        replace_file(self._path, json.dumps({"host": self._host, "hand": self.broker_id}))


def _read(path: Path) -> dict[str, str]:
    """Return the fields of the file; none if it is missing or a crash left it incomplete."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {str(name): str(value) for name, value in stored.items()}


#: Lock of the supervisor of a data directory.
SERVE_LOCK = "serve.lock"


def is_served(data_dir: Path) -> bool:
    """Return whether a supervisor holds a data directory."""
    try:
        with (data_dir / SERVE_LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False
