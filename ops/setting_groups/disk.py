"""Settings of the space that the disk of the event log keeps free."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from ops.setting_groups.group import SettingGroup

MB: Final = 2**20
#: Contexts leave the disk below this multiple of the floor, so that they go before work is refused.
_CACHE_FACTOR: Final = 2


class DiskSettings(SettingGroup):
    """What stays free on the disk of the event log."""

    free_min_mb: int = Field(
        default=512,
        ge=0,
        le=10_000_000,
        description="2^20 bytes; below it new work is refused, and below twice as much contexts are"
        " deleted from the disk and no more are written; 0: no floor",
    )

    @property
    def cache_min_bytes(self) -> int:
        """Free space below which contexts are deleted from the disk."""
        return _CACHE_FACTOR * self.free_min_mb * MB
