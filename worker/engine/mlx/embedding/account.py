"""The memory of embedding models: set aside at the start, and never taken from contexts."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx

from domain.errors import ModelUnusable
from domain.kv.plan import DeviceMemory
from worker.engine.mlx.memory.device import Device


class EmbeddingAccount:
    """``Device`` for the model beside which vectors are computed, without the memory of these.

    The contexts of that model keep their budget: what vectors take counts in no account of theirs,
    and a slice of vectors is no step of theirs. Belongs to the engine thread.

    Args:
        device: The whole device.
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
