"""The source of each setting's value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_settings import (
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    TomlConfigSettingsSource,
)

from ops.settings import Settings
from ops.supervisor.startup_banner import without_password


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting, its value and its source."""

    name: str
    value: Any
    origin: str


def origins(settings: Settings, given: Mapping[str, Any]) -> Iterator[Origin]:
    """Yield every setting in the order of the groups.

    Args:
        settings: The effective settings.
        given: Values of the command line.
    """
    sources = [(_label(source), _flat(source())) for source in _sources(given)]
    for name, value in _leaves(settings):
        setters = (label for label, values in sources if name in values)
        yield Origin(name, value, next(setters, "default"))


def files_in_use(given: Mapping[str, Any]) -> list[Path]:
    """Return the configuration files that are read and exist, the strongest first."""
    files = (source for source in _sources(given) if isinstance(source, TomlConfigSettingsSource))
    paths = (file.toml_file_path for file in files)
    return [path for path in paths if isinstance(path, Path) and path.exists()]


def _sources(given: Mapping[str, Any]) -> tuple[PydanticBaseSettingsSource, ...]:
    """Return the sources that ``load_settings`` reads, strongest first."""
    return Settings.settings_customise_sources(
        Settings,
        InitSettingsSource(Settings, init_kwargs=dict(given)),
        EnvSettingsSource(Settings),
        DotEnvSettingsSource(Settings),
        SecretsSettingsSource(Settings),
    )


def _label(source: PydanticBaseSettingsSource) -> str:
    match source:
        case TomlConfigSettingsSource():
            return str(source.toml_file_path)
        case InitSettingsSource():
            return "command line"
        case _:
            return "environment"


def _flat(values: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    for name, value in values.items():
        if isinstance(value, Mapping):
            names |= {f"{name}.{field}" for field in _flat(value)}
        else:
            names.add(name)
    return names


def _leaves(group: BaseModel) -> Iterator[tuple[str, Any]]:
    for name, value in group:
        if isinstance(value, BaseModel):
            for field, inner in _leaves(value):
                yield f"{name}.{field}", inner
        else:
            yield name, _shown(value)


def _shown(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, SecretStr):
        return str(value)  # stars
    if isinstance(value, tuple):
        return [_shown(part) for part in value]
    return without_password(value) if isinstance(value, str) else value
