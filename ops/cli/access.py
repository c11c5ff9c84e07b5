"""Where the service is and how a command may ask it, without the cost of all settings.

The settings take a quarter of a second to import. A command that only asks the service needs four
of them. They are read here from the same sources in the same order, but never from a file of the
working directory, which could send the key to another address. Whatever this module does not read
itself (groups as JSON, keys in the environment, an invalid value) is left to the settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ops.cli.config_option import given_config_file
from ops.cli.options import overrides, settings_or_exit
from ops.setting_groups.api_keys import first_sendable
from ops.setting_groups.places import HOST, PORT, default_data_dir, user_config_file

if TYPE_CHECKING:
    from ops.settings import Settings

_PREFIX: Final = "SEMANTIC_"
#: Names in the environment that need the parser of the settings.
_LEFT_TO_SETTINGS: Final = frozenset({"SERVER", "SERVER__API_KEYS"})
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccess:
    """What a command needs to ask the service.

    Attributes:
        data_dir: The data directory; it has the record of the running service.
        host: The configured host.
        port: The configured port.
        own_key: The API key that commands send.
    """

    data_dir: Path
    host: str
    port: int
    own_key: str | None


def access_or_exit(data_dir: Path | None) -> ServiceAccess:
    """Return the access; a setting that is not valid exits with one line."""
    found = read_access(data_dir, given_config_file())
    if found is not None:
        return found
    return access_of(settings_or_exit(overrides(data_dir=data_dir)))


def access_of(settings: Settings) -> ServiceAccess:
    """Return what the settings have."""
    return ServiceAccess(
        data_dir=settings.data_dir,
        host=settings.server.host,
        port=settings.server.port,
        own_key=settings.own_key,
    )


def read_access(data_dir: Path | None, config: Path | None) -> ServiceAccess | None:
    """Return the access, or ``None`` where only the settings can read a source.

    Args:
        data_dir: From the command line.
        config: The configuration file that the command line names.
    """
    try:
        sources = list(_sources(data_dir, config))
    except _LeftToSettings:
        return None
    found = {name: _first(name, sources) for name in ("data_dir", "host", "port")}
    keys = _first("api_keys", sources)
    key = _first("api_key", sources)
    path, host, port = found["data_dir"], found["host"], found["port"]
    is_plain = (
        isinstance(path, str | Path)
        and isinstance(host, str)
        and type(port) is int
        and 0 <= port <= _PORT_MAX
        and isinstance(key, str | None)
        and isinstance(keys, list)
        and all(isinstance(text, str) for text in keys)
    )
    if not is_plain:
        return None
    own_key = first_sendable(keys) if key is None else key
    return ServiceAccess(data_dir=Path(path), host=host, port=port, own_key=own_key)


class _LeftToSettings(Exception):
    """A source that only the settings can read."""


def _sources(data_dir: Path | None, config: Path | None) -> Iterator[Mapping[str, Any]]:
    """Yield the values of each source, the strongest first."""
    variables = _variables()
    if config is None and variables.get("CONFIG"):
        config = Path(variables["CONFIG"])
    if data_dir is not None:
        yield {"data_dir": data_dir}
    yield _of_environment(variables)
    # A file that is missing or invalid is reported by the settings.
    if config is not None:
        yield _of_file(config.expanduser(), is_required=True)
    yield _of_file(user_config_file(), is_required=False)
    yield {"data_dir": default_data_dir(), "host": HOST, "port": PORT, "api_keys": []}


def _variables() -> dict[str, str]:
    """Return our variables of the environment without their prefix; names match in any case."""
    upper = {name.upper(): value for name, value in os.environ.items()}
    found = {
        name.removeprefix(_PREFIX): value
        for name, value in upper.items()
        if name.startswith(_PREFIX)
    }
    if found.keys() & _LEFT_TO_SETTINGS:
        raise _LeftToSettings
    return found


def _of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "DATA_DIR": "data_dir",
        "API_KEY": "api_key",
        "SERVER__HOST": "host",
        "SERVER__PORT": "port",
    }
    found: dict[str, Any] = {
        names[name]: value for name, value in variables.items() if name in names
    }
    if (port := found.get("port")) is not None and port.isascii() and port.isdecimal():
        found["port"] = int(port)
    return found


def _of_file(path: Path, *, is_required: bool) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_required:
            return {}
        raise _LeftToSettings from error
    import tomllib  # noqa: PLC0415 - most machines have no such file

    try:
        values = tomllib.loads(text.decode())
    except ValueError as error:  # no TOML, or no UTF-8
        raise _LeftToSettings from error
    server = values.get("server", {})
    if "config" in values or not isinstance(server, dict):
        raise _LeftToSettings
    top = {name: values[name] for name in ("data_dir", "api_key") if name in values}
    group = {name: server[name] for name in ("host", "port", "api_keys") if name in server}
    return top | group


def _first(name: str, sources: list[Mapping[str, Any]]) -> Any:  # noqa: ANN401 - as the source has it
    return next((source[name] for source in sources if name in source), None)
