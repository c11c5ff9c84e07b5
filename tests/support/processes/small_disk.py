"""A really small file system for tests of full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MB = 2**20
#: What a container has by default; it is filled only where it is so small.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, not a name in it
SHARED_MEMORY_MAX_BYTES = 256 * MB


@contextmanager
def small_disk(mount_point: Path, size_mb: int) -> Iterator[Path | None]:
    """Return a directory on a small file system; ``None`` if this user can have none.

    A file system in memory is mounted where that is allowed. In a container, where it is not, the
    shared memory is small enough.

    Args:
        mount_point: An empty directory.
        size_mb: Of the mounted file system.
    """
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(mount_point)]
    has_mount = shutil.which("mount") is not None and os.geteuid() == 0
    if has_mount and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        try:
            yield mount_point
        finally:
            subprocess.run(["umount", "--lazy", str(mount_point)], check=True)
    elif SHARED_MEMORY.is_dir() and _total_bytes(SHARED_MEMORY) <= SHARED_MEMORY_MAX_BYTES:
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as directory:
            yield Path(directory)
    else:
        yield None


def fill(directory: Path) -> Path:
    """Write a file that takes all free space, and return it."""
    file = directory / "filler"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for chunk in (b"x" * MB, b"x" * 4096):
            try:
                while True:
                    os.write(descriptor, chunk)
            except OSError:
                continue  # a smaller piece may fit
    finally:
        os.close(descriptor)
    return file


def _total_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_blocks * found.f_frsize
