"""One holder at a time, and a dead one holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.data_dir.lock import DataDirLocked, DataLock

_HOLD = (
    "import sys; from pathlib import Path; from ops.data_dir.lock import DataLock\n"
    "DataLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()\n"
)


def test_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "data" / "worker.lock"
    with DataLock(path), pytest.raises(DataDirLocked, match=f"process {os.getpid()}") as caught:
        DataLock(path).acquire()
    assert caught.value.pid == os.getpid()


def test_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    lock = DataLock(tmp_path / "worker.lock")
    for _ in range(2):
        lock.acquire()
        lock.release()
        lock.release()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "worker.lock"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirLocked, match=f"process {holder.pid}"):
            DataLock(path).acquire()
        holder.kill()
    with DataLock(path):
        pass
