"""Free space on the disk of the data directory."""

from __future__ import annotations

import shutil
from pathlib import Path

#: Free space below which the next commit of the log may fail, in bytes.
FREE_BYTES_MIN = 1024 * 1024 * 1024


def free_bytes(data_dir: Path) -> int:
    """Return the free space where a data directory is or will be, in bytes."""
    nearest = data_dir.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return shutil.disk_usage(nearest).free
