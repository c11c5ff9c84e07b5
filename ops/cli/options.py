"""Shared by the commands: options, exit codes in the help, instants, settings, failure."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from domain.values import rfc3339
from ops.cli.output import echo
from ops.exit_codes import MEANINGS, ExitCode

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ops.settings.settings import Settings

#: Last lines of each ``--help``.
EPILOG: Final = "Exit codes: " + "; ".join(f"{code:d} {MEANINGS[code]}" for code in ExitCode) + "."


_CONFIG_ENV: Final = "SEMANTIC_CONFIG"

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where everything the service writes lives.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A registered name, a directory, a hub id, or semantic-demo."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 picks a free one.")]
AllowRemote = Annotated[
    bool | None,
    typer.Option("--allow-remote", help="Let other machines in; it takes a key as well."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; fields are only ever added.")]


def overrides(
    *,
    data_dir: Path | None = None,
    model: str | None = None,
    host: str | None = None,
    port: int | None = None,
    allow_remote: bool | None = None,
) -> dict[str, Any]:
    """Return the given options as settings."""
    server = {"host": host, "port": port, "allow_remote": allow_remote}
    given: dict[str, Any] = {
        "config": given_config_file(),
        "data_dir": data_dir,
        "model": _given({"id": model}),
        "server": _given(server),
    }
    return {name: value for name, value in given.items() if value not in (None, {})}


def settings_or_exit(given: dict[str, Any]) -> Settings:
    """Read the settings, or exit with one line for each invalid one.

    No file of the working directory is read, except where ``given`` has one from
    ``with_directory_file``.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from ops.settings.settings import load_settings

    try:
        return load_settings(**given)
    except ValidationError as error:
        lines = []
        for fault in error.errors(include_url=False):
            place = [*map(str, fault["loc"])]
            why = _no_setting(place) if fault["type"] == "extra_forbidden" else fault["msg"]
            lines.append(f"setting {'.'.join(place)}: {why}")
        fail("\nsemantic: ".join(lines), ExitCode.CONFIG)
    except (SettingsError, ValueError) as error:  # ValueError: a TOML file that is none
        fail(str(error), ExitCode.CONFIG)


def _no_setting(place: list[str]) -> str:
    """Return that a setting does not exist, and the one beside it whose name is nearest."""
    from difflib import get_close_matches

    from ops.settings.models import ModelTable
    from ops.settings.settings import Settings

    known: Mapping[str, FieldInfo] = Settings.model_fields
    for name in place[:-1]:
        group = known[name].annotation if name in known else ModelTable
        known = getattr(group, "model_fields", {})
    near = get_close_matches(place[-1], known, 1)
    hint = f"; did you mean {'.'.join((*place[:-1], *near))}?" if near else ""
    return f"there is no such setting{hint}"


def operator_settings(given: dict[str, Any]) -> Settings:
    """Read the settings as ``semantic serve`` does; see ``with_directory_file``."""
    return settings_or_exit(with_directory_file(given))


def with_directory_file(given: dict[str, Any]) -> dict[str, Any]:
    """Add the file of the working directory if it is trusted; else name it on stderr."""
    added, ignored = directory_file(given)
    for line in ignored:
        echo(f"semantic: {line}", err=True)
    return given | added


def directory_file(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the trusted file of the working directory, and lines about those that are not read.

    Args:
        given: Options as settings; a file that they or the environment name takes its place.
    """
    from ops.settings.trusted_files import DIRECTORY_FILE, read_directory

    variables = (value for name, value in os.environ.items() if name.upper() == _CONFIG_ENV)
    if given.get("config") or any(variables):
        return {}, ()
    found, ignored = read_directory(Path())
    return {} if found is None else {DIRECTORY_FILE: found}, ignored


def fail(message: str, code: ExitCode) -> NoReturn:
    """Print one line on stderr and exit."""
    echo(f"semantic: {message}", err=True)
    raise typer.Exit(int(code))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Read this file of settings before your own.", metavar="FILE"),
]
_GIVEN: Final[ContextVar[Path | None]] = ContextVar("config file", default=None)


def given_config_file() -> Path | None:
    """Return the file that the command line names."""
    return _GIVEN.get()


@contextmanager
def use_config_file(path: Path | None) -> Iterator[None]:
    """Let ``given_config_file`` return this file; ``None`` changes nothing."""
    if path is None:
        yield
        return
    token = _GIVEN.set(path)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def add_config_option(app: typer.Typer) -> None:
    """Add ``--config`` to each command of an application."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_option(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_config_option(group.typer_instance)


def _with_option(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*, config: Path | None = None, **given: Any) -> Any:  # noqa: ANN401 - as typer calls it
        with use_config_file(config):
            return function(**given)

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile
    )
    parameters = [*signature.parameters.values(), option]
    command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {**function.__annotations__, "config": ConfigFile}
    return command


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")


def parse_instant(text: str) -> str:
    """Return ``10m`` (ago) or an ISO 8601 instant as the log writes instants.

    Raises:
        typer.BadParameter: It is neither.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return rfc3339(datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])}))
        moment = datetime.fromisoformat(text)
        # Without an offset it is UTC, as in the log.
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return rfc3339(moment.astimezone(UTC))
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is neither an age such as 10m, 2h or 3d nor an ISO 8601 instant"
        raise typer.BadParameter(msg) from error
