"""A device with memory in use that no account knows."""

from __future__ import annotations

import mlx.core as mx

from domain.kv.plan import DeviceMemory
from worker.engine.mlx.memory.device import ProcessDevice


class DeviceWithUnknownMemory(ProcessDevice):
    """This process, with memory of a fixed size and without limits that other tests would feel.

    Attributes:
        unknown_bytes: Memory in use that no account knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown_bytes = 0

    def memory(self) -> DeviceMemory:
        return DeviceMemory(
            memory_bytes=1 << 40, device_bytes=1 << 40, usable_bytes=1 << 40, source="a test"
        )

    def limit(self, *, memory_bytes: int, cache_bytes: int) -> None:
        del memory_bytes, cache_bytes

    def active_bytes(self) -> int:
        return mx.get_active_memory() + self.unknown_bytes
