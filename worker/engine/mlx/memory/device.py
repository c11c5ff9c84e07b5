"""The memory of this machine's device, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import mlx.core as mx
import psutil

from domain.errors import ModelUnusable
from domain.kv.plan import DeviceMemory, planned_share
from ops.models.cgroups import CgroupFiles, cgroup_free_bytes


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
