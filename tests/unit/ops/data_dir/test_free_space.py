"""The floor under new work, and the reserve for the ends of jobs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from domain.errors import DiskFull
from ops.data_dir.free_space import START_BYTES, DiskFloor, Reserve, floor_of, free_bytes
from ops.settings.service import DiskSettings, LogSettings
from ops.settings.settings import Settings

MB = 2**20


class SmallDisk:
    """A floor over an invented disk; the reserve is a real file."""

    def __init__(self, directory: Path) -> None:
        self.free = 100 * MB
        self.reserve = Reserve.beside(directory / "events.sqlite3")
        self.floor = DiskFloor(
            measure=lambda: self.free,
            free_min_bytes=10 * MB,
            cache_min_bytes=20 * MB,
            reserve=self.reserve,
            reserve_bytes=3 * MB,
        )


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    return SmallDisk(tmp_path)


def test_the_reserve_takes_its_space_and_only_its_owner_reads_it(
    disk: SmallDisk, tmp_path: Path
) -> None:
    disk.floor.renew()
    (file,) = tmp_path.iterdir()
    assert file.name == "events.sqlite3.reserve"
    assert (file.stat().st_size, stat.S_IMODE(file.stat().st_mode)) == (3 * MB, 0o600)
    assert disk.reserve.release()
    assert not disk.reserve.release()
    assert not list(tmp_path.iterdir())


def test_new_work_is_refused_below_the_floor(disk: SmallDisk) -> None:
    disk.floor.renew()
    disk.free = 10 * MB
    disk.floor.require_space()
    disk.free -= 1
    with pytest.raises(DiskFull, match=r"9 MiB are free .* less than 10 MiB \(disk.free_min"):
        disk.floor.require_space()


def test_new_work_is_refused_until_the_reserve_is_held_again(disk: SmallDisk) -> None:
    disk.floor.renew()
    assert disk.reserve.release()
    disk.free = 12 * MB  # enough for work, but not for the reserve on top
    disk.floor.renew()
    with pytest.raises(DiskFull, match=r"3 MiB .* are not reserved again"):
        disk.floor.require_space()
    disk.free = 13 * MB
    disk.floor.renew()
    disk.floor.require_space()


def test_a_start_on_a_full_disk_takes_the_space_of_the_reserve(disk: SmallDisk) -> None:
    disk.floor.renew()
    disk.free = START_BYTES
    disk.floor.make_way()
    assert disk.reserve.exists()
    disk.free = 0
    disk.floor.make_way()
    assert not disk.reserve.exists()


def test_a_disk_that_is_full_for_this_user_leaves_no_part_of_the_reserve(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr("ops.data_dir.free_space.os.fsync", refuse)
    assert not disk.reserve.hold(MB)
    assert not list(tmp_path.iterdir())
    disk.floor.renew()
    assert disk.floor.shortage()


def test_no_floor_and_no_reserve_refuse_nothing() -> None:
    floor = DiskFloor(measure=lambda: 0)
    floor.renew()
    floor.require_space()


def test_the_floor_is_that_of_the_disk_with_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.data_dir.free_space.RESERVE_MB", 1)
    elsewhere = tmp_path / "elsewhere" / "log.db"
    disk = DiskSettings(free_min_mb=3)
    settings = Settings(data_dir=tmp_path / "data", log=LogSettings(url=f"sqlite:///{elsewhere}"))
    assert settings.log_file == elsewhere
    floor = floor_of(disk, log_file=elsewhere, data_dir=settings.data_dir)
    assert (floor.free_min_bytes, floor.cache_min_bytes) == (3 * MB, 6 * MB)
    elsewhere.parent.mkdir()
    floor.renew()
    assert [file.name for file in elsewhere.parent.iterdir()] == ["log.db.reserve"]


def test_a_log_of_a_server_has_no_reserve_here(tmp_path: Path) -> None:
    server = Settings(data_dir=tmp_path, log=LogSettings(url="postgresql:///semantic"))
    assert server.log_file is None
    floor = floor_of(server.disk, log_file=None, data_dir=tmp_path)
    floor.renew()
    assert floor.shortage() is None
    assert not list(tmp_path.iterdir())


def test_the_space_of_a_directory_to_come_is_that_of_the_nearest_one(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    size = found.f_blocks * found.f_frsize
    assert 0 < free_bytes(tmp_path / "not" / "yet") <= size
