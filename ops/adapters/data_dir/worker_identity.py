"""The identity of the worker of a data directory: it survives restarts, but not a copy."""

from __future__ import annotations

import json
import platform
import secrets
from pathlib import Path

from domain.values import WorkerId

_TOKEN_BYTES = 8


class WorkerIdentity:
    """The file that names the directory's consumer at the broker and the directory's last worker.

    Only the process that holds the worker lock reads and writes the file. A new worker of the same
    directory gets the same broker id, so it finds the messages that the last one left in hand. A
    copy of the directory on another host gets a broker id of its own.

    Args:
        path: E.g. ``<data_dir>/worker.json``.
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
        """Write ``worker`` as the present worker of the directory.

        Raises:
            OSError: The file cannot be written.
        """
        self._write({"host": self._host, "hand": self.broker_id, "worker": worker})

    def forget(self) -> None:
        """Name no worker: the present one ends in order although it may be within a load.

        Raises:
            OSError: The file cannot be written.
        """
        self._write({"host": self._host, "hand": self.broker_id})

    def _write(self, content: dict[str, str]) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text(json.dumps(content))
        fresh.replace(self._path)


def _read(path: Path) -> dict[str, str]:
    """Return the fields of the file; none if it is missing or a crash left it incomplete."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {str(name): str(value) for name, value in stored.items()}
