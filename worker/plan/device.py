"""How much memory the engine may use, on this machine or on a planned Mac."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from domain.kv.plan import metal_working_set
from worker.engine.mlx.memory_report import recommended_working_set

#: Memory limit of the control group on Linux; ``max`` where there is none.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of a machine.

    Attributes:
        memory_bytes: All of its memory.
        device_bytes: The part that weights, steps and contexts may use.
        source: Where ``device_bytes`` comes from.
    """

    memory_bytes: int
    device_bytes: int
    source: str


def planned_mac(memory_bytes: int) -> DeviceMemory:
    """Return the memory of a Mac of that size."""
    return DeviceMemory(
        memory_bytes=memory_bytes,
        device_bytes=metal_working_set(memory_bytes),
        source="estimate of what Metal recommends",
    )


def this_machine() -> DeviceMemory:
    """Return the memory of this machine."""
    memory = psutil.virtual_memory()
    recommended = recommended_working_set()
    if recommended is not None:
        return DeviceMemory(
            memory_bytes=memory.total, device_bytes=recommended, source="recommended by Metal"
        )
    limit = _cgroup_limit()
    if limit is not None and limit < memory.available:
        return DeviceMemory(
            memory_bytes=memory.total, device_bytes=limit, source="limit of the control group"
        )
    return DeviceMemory(
        memory_bytes=memory.total, device_bytes=memory.available, source="available now"
    )


def _cgroup_limit() -> int | None:
    try:
        text = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
