"""The memory of this machine's device: its limits, and what control groups leave of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

import mlx.core as mx
import psutil

from domain.errors import ModelUnusable
from domain.kv.plan import DeviceMemory, planned_share


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of a version's files.

    Attributes:
        limits: Bytes that the group may use; missing, or ``max``, where there is no limit. Beyond
            ``memory.high`` the kernel throttles the group.
        usage: Bytes in use, page cache included.
        cache: Name of the page cache in ``memory.stat`` that the kernel drops first.
    """

    limits: tuple[str, ...]
    usage: str
    cache: str


_V2 = _Version(("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFiles:
    """Where the kernel shows control groups.

    Attributes:
        mount: Directory of the hierarchies.
        membership: File with the groups of this process, ``id:controllers:path`` on each line.
    """

    mount: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")


def cgroup_free_bytes(files: CgroupFiles) -> int | None:
    """Return the memory that the groups of this process leave; ``None`` without a limit.

    Page cache that the kernel drops first counts as free, as in ``MemAvailable``.
    """
    free = (_free(group, version) for group, version in _groups(files))
    return min((size for size in free if size is not None), default=None)


def _groups(files: CgroupFiles) -> Iterator[tuple[Path, _Version]]:
    """Yield the groups of this process and their parents."""
    for line in _text(files.membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator:
            continue
        if not controllers:
            yield from ((group, _V2) for group in _and_parents(files.mount, path))
        elif "memory" in controllers.split(","):
            yield from ((group, _V1) for group in _and_parents(files.mount / "memory", path))


def _and_parents(mount: Path, path: str) -> Iterator[Path]:
    # A group outside of the container is shown with ``..``.
    own = PurePosixPath(*[part for part in PurePosixPath(path).parts if part not in ("/", "..")])
    yield from (mount / part for part in (own, *own.parents))


def _free(group: Path, version: _Version) -> int | None:
    limits = [_number(group / name) for name in version.limits]
    limit = min((size for size in limits if size is not None), default=None)
    usage = _number(group / version.usage)
    if limit is None or usage is None:
        return None
    return max(0, limit - max(0, usage - _cache(group, version)))


def _cache(group: Path, version: _Version) -> int:
    for line in _text(group / "memory.stat").splitlines():
        name, _, size = line.partition(" ")
        if name == version.cache and size.isdigit():
            return int(size)
    return 0


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


class Device(Protocol):
    """The memory in which a model runs. Only the thread that loads the model uses it."""

    def memory(self) -> DeviceMemory:
        """Return what this process may use now, including what it has allocated."""
        ...

    def limit(self, *, memory_bytes: int, cache_bytes: int) -> None:
        """Set the limits of this process.

        Args:
            memory_bytes: From here on, freed buffers are given back before new ones are allocated.
            cache_bytes: Freed buffers that are kept for reuse.
        """
        ...

    def active_bytes(self) -> int:
        """Return the bytes of all arrays of this process."""
        ...

    def peak_bytes(self) -> int:
        """Return the most that ``active_bytes`` has been since the start or the last reset."""
        ...


class ProcessDevice:
    """``Device`` of this process."""

    def __init__(self, cgroups: CgroupFiles | None = None) -> None:
        self._cgroups = cgroups or CgroupFiles()

    def memory(self) -> DeviceMemory:
        """Return what this process may use now, including what it has allocated."""
        own = mx.get_active_memory() + mx.get_cache_memory()
        if mx.metal.is_available():
            return _of_metal(own)
        if mx.cuda.is_available():
            info = mx.device_info()
            return _of_free(
                int(info["total_memory"]), int(info["free_memory"]) + own, "free on the GPU"
            )
        memory, in_groups = psutil.virtual_memory(), cgroup_free_bytes(self._cgroups)
        if in_groups is not None and in_groups < memory.available:
            return _of_free(memory.total, in_groups + own, "left by the control group")
        return _of_free(memory.total, memory.available + own, "available now")

    def limit(self, *, memory_bytes: int, cache_bytes: int) -> None:
        """Set the limits of MLX in this process."""
        mx.set_memory_limit(memory_bytes)
        mx.set_cache_limit(cache_bytes)

    def active_bytes(self) -> int:
        """Return the bytes of all arrays of this process."""
        return mx.get_active_memory()

    def peak_bytes(self) -> int:
        """Return the most that ``active_bytes`` has been since the start or the last reset."""
        return mx.get_peak_memory()


def _of_metal(own_bytes: int) -> DeviceMemory:
    memory = psutil.virtual_memory()
    recommended = int(mx.device_info()["max_recommended_working_set_size"])
    available = memory.available + own_bytes
    planned = planned_share(recommended)
    return DeviceMemory(
        memory_bytes=memory.total,
        device_bytes=min(recommended, available),
        usable_bytes=min(planned, available),
        source="0.9 of what Metal recommends" if planned <= available else "available now",
    )


def _of_free(memory_bytes: int, free_bytes: int, source: str) -> DeviceMemory:
    return DeviceMemory(
        memory_bytes=memory_bytes,
        device_bytes=free_bytes,
        usable_bytes=planned_share(free_bytes),
        source=f"0.9 of what is {source}",
    )


class EmbeddingAccount:
    """``Device`` for the model beside which vectors are computed, without the memory of these.

    The contexts of that model keep their budget: what vectors take counts in no account of theirs,
    and a slice of vectors is no step of theirs. Belongs to the engine thread.

    Args:
        reserve_bytes: What the largest embedding model takes; 0 if there is none.

    Attributes:
        is_granted: Whether the device has that much beside the model.
    """

    def __init__(self, device: Device, reserve_bytes: int) -> None:
        self._device = device
        self._own_bytes = 0
        self._peak_bytes = 0
        self.reserve_bytes = reserve_bytes
        self.is_granted = False

    def memory(self) -> DeviceMemory:
        """Return the memory of the whole process."""
        return self._device.memory()

    def beside(self, memory: DeviceMemory) -> DeviceMemory:
        """Return the memory that is left where the reserve is taken out of it."""
        return replace(memory, usable_bytes=max(0, memory.usable_bytes - self.reserve_bytes))

    def require(self, memory_bytes: int) -> None:
        """Refuse a model for which nothing, or too little, is set aside.

        Raises:
            ModelUnusable: The message has the way out.
        """
        if not self.is_granted:
            msg = "the memory has no room for this model beside the one that is loaded"
            raise ModelUnusable(msg)
        if memory_bytes > self.reserve_bytes:
            msg = "this model came after the start of the worker, which set less memory aside"
            raise ModelUnusable(f"{msg}: restart the service")

    def limit(self, *, memory_bytes: int, cache_bytes: int) -> None:
        """Set the limits of the process."""
        self._device.limit(memory_bytes=memory_bytes, cache_bytes=cache_bytes)

    def active_bytes(self) -> int:
        """Return the bytes of all arrays but those of vectors."""
        return max(0, self._device.active_bytes() - self._own_bytes)

    def peak_bytes(self) -> int:
        """Return the most that ``active_bytes`` has been, apart from slices of vectors."""
        self._peak_bytes = max(self._peak_bytes, self._device.peak_bytes() - self._own_bytes)
        return self._peak_bytes

    def begin_slice(self) -> None:
        """Note the peak of the steps before a slice of vectors."""
        self.peak_bytes()

    def end_slice(self, own_bytes: int) -> None:
        """Forget the peak of the slice.

        Args:
            own_bytes: Weights and caches that it leaves in memory.
        """
        self._own_bytes = own_bytes
        mx.reset_peak_memory()
