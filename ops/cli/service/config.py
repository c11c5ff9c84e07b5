"""``semantic config``: the settings in force."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from ops.cli.exit_codes import EPILOG
from ops.cli.options import DataDir, Host, Json, Model, Port, overrides, settings_or_exit
from ops.cli.table import print_table


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Show the settings in force.")
    group.callback()(_group)
    group.command("show", epilog=EPILOG)(show)
    app.add_typer(group, name="config", rich_help_panel="Look")


def _group() -> None:
    """Show the settings in force."""


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

    Command line beats SEMANTIC_* variables beat .env beats ./semantic.toml beats
    ~/.config/semantic/semantic.toml beats the defaults. --config FILE, or the
    variable SEMANTIC_CONFIG, names a file in place of ./semantic.toml.
    """
    given = overrides(data_dir=data_dir, model=model, host=host, port=port)
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
        typer.echo(jsonlib.dumps(values, indent=2))
        return
    rows = [
        (setting.name, jsonlib.dumps(setting.value), *([setting.origin] if origin else []))
        for setting in found
    ]
    print_table(("setting", "value", *(["origin"] if origin else [])), rows)
