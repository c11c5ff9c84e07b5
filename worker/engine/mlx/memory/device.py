"""The memory of this machine's device, and the limits that MLX keeps there.

    Metal   device = min(what Metal recommends, available + own), usable = min(0.9 x what Metal
            recommends, available + own)
    CUDA    device = free + own, usable = 0.9 of it
    CPU     device = min(available, what the control groups leave) + own, usable = 0.9 of it

*Own* is what this process has allocated already, such as the weights.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx
import psutil

from domain.kv.plan import DeviceMemory, planned_share
from worker.engine.mlx.memory.cgroups import CgroupFiles, cgroup_free_bytes


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
    """``Device`` of this process.

    Args:
        cgroups: Where the kernel shows control groups.
    """

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
