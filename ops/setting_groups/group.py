"""The base of a group of settings: frozen and strict."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SettingGroup(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")
