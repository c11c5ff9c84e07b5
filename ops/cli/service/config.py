"""``semantic config``: the settings in force."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from ops.cli.exit_codes import EPILOG, ExitCode
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
from ops.cli.output import echo, print_table

Directory = Annotated[Path, typer.Argument(help="The directory of the semantic.toml.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="Show the settings in force; trust a directory's file."
    )
    group.callback()(_group)
    group.command("show", epilog=EPILOG)(show)
    group.command("trust", epilog=EPILOG)(trust)
    app.add_typer(group, name="config", rich_help_panel="Look")


def _group() -> None:
    """Show the settings in force; trust a directory's file."""


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
    from ops.cli.service.origins import origins  # noqa: PLC0415 - keeps --help fast

    found = list(origins(settings, given))
    if json:
        values = {
            setting.name: (
                {"value": setting.value, "origin": setting.origin} if origin else setting.value
            )
            for setting in found
        }
        echo(jsonlib.dumps(values, indent=2))
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
    from ops.setting_groups import trusted_files  # noqa: PLC0415 - keeps --help fast

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
    from ops.setting_groups import trusted_files  # noqa: PLC0415 - keeps --help fast

    try:
        was_trusted = trusted_files.distrust(directory)
    except OSError as error:
        fail(f"{error.filename} cannot be written: {error.strerror}", ExitCode.FAILED)
    path = (directory / "semantic.toml").absolute()
    echo(f"{path} is {'no longer' if was_trusted else 'not'} trusted")
