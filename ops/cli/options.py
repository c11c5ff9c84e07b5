"""Shared by the commands: options, settings, failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ops.cli.config_option import given_config_file
from ops.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from ops.settings import Settings

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
    """Read the settings, or exit with one line for each invalid one."""
    from pydantic import ValidationError  # noqa: PLC0415 - keeps --help fast
    from pydantic_settings import SettingsError  # noqa: PLC0415 - the same

    from ops.settings import load_settings  # noqa: PLC0415 - the same

    try:
        return load_settings(**given)
    except ValidationError as error:
        lines = [
            f"setting {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        ]
        fail("\nsemantic: ".join(lines), ExitCode.CONFIG)
    except (SettingsError, ValueError) as error:  # ValueError: a TOML file that is none
        fail(str(error), ExitCode.CONFIG)


def fail(message: str, code: ExitCode) -> NoReturn:
    """Print one line on stderr and exit."""
    typer.echo(f"semantic: {message}", err=True)
    raise typer.Exit(int(code))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
