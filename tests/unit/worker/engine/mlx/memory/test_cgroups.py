"""Limits of control groups, in both versions, from files as the kernel writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import worker.demo_model
from ops.models.cgroups import CgroupFiles, cgroup_free_bytes, cgroup_limit_bytes
from worker.engine.mlx.memory.at_load import DeviceBudget
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.ports import ModelLoadError

MB = 1 << 20
UNLIMITED_V1 = 9223372036854771712


class Machine:
    """A directory with control groups."""

    def __init__(self, root: Path, membership: str) -> None:
        self.mount = root / "cgroup"
        self.mount.mkdir()
        file = root / "membership"
        file.write_text(membership)
        self.files = CgroupFiles(mount=self.mount, membership=file)

    def v2(self, group: str, limit: str, used: int, *, high: str = "max", cache: int = 0) -> None:
        self._write(
            self.mount / group,
            {
                "memory.max": limit,
                "memory.high": high,
                "memory.current": used,
                "memory.stat": f"anon 1\ninactive_file {cache}\nactive_file 5",
            },
        )

    def v1(self, group: str, limit: int, used: int, *, cache: int = 0) -> None:
        self._write(
            self.mount / "memory" / group,
            {
                "memory.limit_in_bytes": limit,
                "memory.usage_in_bytes": used,
                "memory.stat": f"inactive_file 7\ntotal_inactive_file {cache}",
            },
        )

    def free(self) -> int | None:
        return cgroup_free_bytes(self.files)

    def _write(self, group: Path, files: dict[str, object]) -> None:
        group.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (group / name).write_text(f"{content}\n")


def test_own_group_of_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/user.slice/app\n")
    machine.v2("user.slice/app", str(100 * MB), 30 * MB)
    assert machine.free() == 70 * MB


def test_page_cache_that_is_dropped_first_is_free(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/app\n")
    machine.v2("app", str(100 * MB), 90 * MB, cache=50 * MB)
    assert machine.free() == 60 * MB


def test_a_parent_may_leave_less(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/user.slice/app\n")
    machine.v2("user.slice/app", str(100 * MB), 30 * MB)
    machine.v2("user.slice", str(200 * MB), 190 * MB)
    assert machine.free() == 10 * MB


def test_a_group_is_throttled_beyond_its_high_mark(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/app\n")
    machine.v2("app", "max", 30 * MB, high=str(50 * MB))
    assert machine.free() == 20 * MB


def test_group_of_a_container_is_the_mount_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/../../docker/1234\n")
    machine.v2("", str(100 * MB), 30 * MB)
    assert machine.free() == 70 * MB


def test_version_1_beside_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "12:cpu,cpuacct:/\n4:memory:/a/b\n1:name=systemd:/\n0::/\n")
    machine.v1("a/b", 100 * MB, 80 * MB, cache=15 * MB)
    machine.v1("", UNLIMITED_V1, 500 * MB)
    assert machine.free() == 35 * MB


@pytest.mark.parametrize("membership", ["", "0::/app\n", "4:memory:/a\n", "garbled\n"])
def test_no_limit(tmp_path: Path, membership: str) -> None:
    machine = Machine(tmp_path, membership)
    machine.v2("app", "max", 30 * MB)
    assert machine.free() is None


def test_more_in_use_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/app\n")
    machine.v2("app", str(100 * MB), 130 * MB)
    assert machine.free() == 0


def test_the_limit_is_the_least_of_the_group_and_its_parents(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/user.slice/app\n")
    machine.v2("user.slice/app", str(100 * MB), 30 * MB)
    machine.v2("user.slice", str(200 * MB), 190 * MB, high=str(90 * MB))
    assert cgroup_limit_bytes(machine.files) == 90 * MB


def test_a_missing_hierarchy_has_no_limit(tmp_path: Path) -> None:
    files = CgroupFiles(mount=tmp_path / "none", membership=tmp_path / "neither")
    assert cgroup_free_bytes(files) is None
    assert cgroup_limit_bytes(files) is None


def test_the_device_is_what_the_group_leaves_and_what_the_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, "0::/app\n")
    machine.v2("app", str(100 * MB), 30 * MB)
    monkeypatch.setattr("mlx.core.get_active_memory", lambda: 8 * MB)
    monkeypatch.setattr("mlx.core.get_cache_memory", lambda: 2 * MB)
    memory = ProcessDevice(machine.files).memory()
    assert memory.device_bytes == 80 * MB
    assert memory.usable_bytes == 72 * MB
    assert memory.source == "0.9 of what is left by the control group"
    assert memory.memory_bytes == psutil.virtual_memory().total


@pytest.mark.parametrize(("limit_mb", "fits"), [(3, False), (9, True)])
def test_weights_beyond_the_group_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_mb: int, *, fits: bool
) -> None:
    machine = Machine(tmp_path, "0::/app\n")
    machine.v2("app", str(limit_mb * MB), MB)
    monkeypatch.setattr("mlx.core.get_active_memory", lambda: 0)
    monkeypatch.setattr("mlx.core.get_cache_memory", lambda: 0)
    budget = DeviceBudget(device=ProcessDevice(machine.files), batch=1)
    weights = Path(worker.demo_model.__file__).parent
    if fits:
        budget.check_weights(weights)
        return
    with pytest.raises(ModelLoadError, match=r"its weights take .* left by the control group"):
        budget.check_weights(weights)
    # The user may know better.
    replace(budget, pinned_bytes=MB).check_weights(weights)


@pytest.mark.parametrize(
    ("available", "device", "usable", "source"),
    [
        (20, 16, 14.4, "0.9 of what Metal recommends"),
        (15, 16, 14.4, "0.9 of what Metal recommends"),
        (13, 14, 14, "available now"),
    ],
)
def test_metal_has_what_it_recommends_as_far_as_it_is_available(
    monkeypatch: pytest.MonkeyPatch, available: int, device: int, usable: float, source: str
) -> None:
    class Available:
        total = 24 * MB

    Available.available = available * MB  # type: ignore[attr-defined]
    monkeypatch.setattr("mlx.core.metal.is_available", lambda: True)
    info = {"max_recommended_working_set_size": 16 * MB}
    monkeypatch.setattr("mlx.core.device_info", lambda: info)
    monkeypatch.setattr("mlx.core.get_active_memory", lambda: MB)
    monkeypatch.setattr("mlx.core.get_cache_memory", lambda: 0)
    monkeypatch.setattr("psutil.virtual_memory", Available)
    memory = ProcessDevice().memory()
    assert (memory.device_bytes, memory.usable_bytes) == (device * MB, int(usable * MB))
    assert memory.source == source


def test_cuda_has_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx.core.cuda.is_available", lambda: True)
    info = {"total_memory": 100 * MB, "free_memory": 60 * MB}
    monkeypatch.setattr("mlx.core.device_info", lambda: info)
    monkeypatch.setattr("mlx.core.get_active_memory", lambda: 20 * MB)
    monkeypatch.setattr("mlx.core.get_cache_memory", lambda: 0)
    memory = ProcessDevice().memory()
    assert (memory.memory_bytes, memory.device_bytes, memory.usable_bytes) == (
        100 * MB,
        80 * MB,
        72 * MB,
    )
    assert memory.source == "0.9 of what is free on the GPU"
