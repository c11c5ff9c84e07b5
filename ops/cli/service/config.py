"""``semantic config``: the settings in force and their sources."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel, SecretStr
from pydantic_settings import (
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    TomlConfigSettingsSource,
)

from ops.cli.options import (
    DataDir,
    Host,
    Json,
    Model,
    Port,
    fail,
    overrides,
    settings_or_exit,
    with_directory_file,
)
from ops.cli.output import echo, print_json, print_table
from ops.exit_codes import ExitCode
from ops.settings import trusted_files
from ops.settings.settings import Settings
from ops.supervisor.startup_banner import without_password

Directory = Annotated[Path, typer.Argument(help="The directory of the semantic.toml.")]


def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Print the source of each value.")
    ] = False,
    model: Model = None,
    port: Port = None,
    host: Host = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show every setting.

    Command line beats SEMANTIC_* variables beat the file that --config or
    SEMANTIC_CONFIG names beat ~/.config/semantic/semantic.toml beat the defaults.
    Without a named file, serve and the commands on the log read ./semantic.toml
    if it is trusted; client commands do not, nor does any command read .env.
    """
    given = with_directory_file(overrides(data_dir=data_dir, model=model, host=host, port=port))
    settings = settings_or_exit(given)
    found = list(origins(settings, given))
    if json:
        values = {
            setting.name: (
                {"value": setting.value, "origin": setting.origin} if origin else setting.value
            )
            for setting in found
        }
        print_json(values)
        return
    rows = [
        (setting.name, jsonlib.dumps(setting.value), *([setting.origin] if origin else []))
        for setting in found
    ]
    print_table(("setting", "value", *(["origin"] if origin else [])), rows)


def trust(
    directory: Directory = Path(),
    undo: Annotated[bool, typer.Option("--undo", help="Stop reading the file.")] = False,
) -> None:
    """Let serve and the commands on the log read a directory's semantic.toml.

    The path and the digest of the file are kept in your configuration directory:
    a changed file needs trust again. Prints the names of the settings in it.
    """
    if undo:
        _distrust(directory)
        return
    try:
        path, names = trusted_files.trust(directory)
    except trusted_files.NotTrustable as error:
        fail(str(error), ExitCode.CONFIG)
    except OSError as error:
        fail(f"{error.filename} cannot be written: {error.strerror}", ExitCode.FAILED)
    echo(f"trusted {path}, which sets: {', '.join(names) or 'nothing'}")


def _distrust(directory: Path) -> None:
    try:
        was_trusted = trusted_files.distrust(directory)
    except OSError as error:
        fail(f"{error.filename} cannot be written: {error.strerror}", ExitCode.FAILED)
    path = (directory / "semantic.toml").absolute()
    echo(f"{path} is {'no longer' if was_trusted else 'not'} trusted")


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting, its value and its source."""

    name: str
    value: Any
    origin: str


def origins(settings: Settings, given: Mapping[str, Any]) -> Iterator[Origin]:
    """Yield every setting in the order of the groups."""
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


#: The commands of the group, by name.
COMMANDS: Final = {"show": show, "trust": trust}
