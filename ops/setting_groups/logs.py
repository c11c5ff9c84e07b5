"""Settings of the log files of the parts."""

from __future__ import annotations

from pydantic import Field

from ops.setting_groups.group import SettingGroup


class LogFileSettings(SettingGroup):
    """Files with the log lines of all parts, in ``logs`` of the data directory."""

    max_mb: int = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="of all files together; the oldest are deleted; 0 writes none",
    )
    # A full file is compressed between two lines, which a larger one would delay for seconds.
    file_mb: int = Field(
        default=10, ge=1, le=100, description="size at which a file is full and is compressed"
    )
    keep_days: float = Field(
        default=14.0, gt=0, le=3650, description="age at which a file is deleted"
    )
