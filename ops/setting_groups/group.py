"""The base of a group of settings: frozen, strict, and aware of old names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class SettingGroup(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: Present names of renamed settings, by the old name, which still works and warns.
    renamed: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, values: Any) -> Any:  # noqa: ANN401 - checked by pydantic afterwards
        if not isinstance(values, Mapping):
            return values
        present = dict(values)
        for old in cls.renamed.keys() & values.keys():
            new, value = cls.renamed[old], present.pop(old)
            warnings.warn(f"the setting {old} is now {new}", FutureWarning, stacklevel=2)
            present.setdefault(new, value)
        return present
