"""Prints where a run of the tests keeps its files: ``python -m tests.support.fast_directory``.

Tests make thousands of small logs and databases. A third of their time would be that of a disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - a mount, not a file in it
#: A whole run leaves some 1.5 GB.
_FREE_MIN_BYTES = 6 << 30


def fast_directory() -> Path:
    """Return ``TMPDIR`` if it is set, else the memory that Linux mounts, else the usual one.

    Memory is taken if it has room, and programs may be run from it: some tests install the service.
    """
    if not os.environ.get("TMPDIR") and os.access(_MEMORY, os.W_OK):
        may_run = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
        if may_run and shutil.disk_usage(_MEMORY).free >= _FREE_MIN_BYTES:
            return _MEMORY
    return Path(tempfile.gettempdir())


if __name__ == "__main__":
    print(fast_directory())  # noqa: T201 - a command
