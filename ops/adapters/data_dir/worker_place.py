"""Which worker a data directory belongs to, over restarts and apart from other machines."""

from __future__ import annotations

import json
import platform
import secrets
from pathlib import Path

from domain.values import WorkerId

_TOKEN_BYTES = 8


class WorkerPlace:
    """A file beside the worker lock; read and written by whoever holds that lock.

    Workers that share a queue take their messages into hands of their own. A hand is found again by
    the next worker of the same directory, and never by one of another: a directory that was copied
    to another machine gets a new one there.

    Args:
        path: E.g. ``<data_dir>/worker.json``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._host = platform.node()
        said = _read(path)
        is_ours = said.get("host") == self._host
        #: Whose hand messages are in.
        self.hand = said.get("hand", "") if is_ours else ""
        #: The worker that was here before; ``None`` if none was.
        self.last = WorkerId(said["worker"]) if is_ours and "worker" in said else None
        if not self.hand:
            self.hand = f"engine-{secrets.token_hex(_TOKEN_BYTES)}"

    def enter(self, worker: WorkerId) -> None:
        """Note who is here now.

        Raises:
            OSError: The file cannot be written.
        """
        said = {"host": self._host, "hand": self.hand, "worker": worker}
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text(json.dumps(said))
        fresh.replace(self._path)


def _read(path: Path) -> dict[str, str]:
    """Return what the file says; nothing if there is none, or a crash left half of one."""
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}
