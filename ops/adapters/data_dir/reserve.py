"""A file that holds space on the disk of the log, so that a full disk still takes ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ops.adapters.data_dir.sync import sync_directory

#: Bytes of one write; random, since some file systems store no zeros.
_CHUNK_BYTES: Final = 1024 * 1024


class Reserve:
    """A file of a known size that is deleted when its space is needed. Any process may delete it.

    Args:
        path: Of the file; it need not exist.
    """

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
