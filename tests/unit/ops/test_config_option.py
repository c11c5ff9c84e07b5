"""Each command takes ``--config``."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import typer

from ops.cli.main import build_app
from ops.cli.options import add_config_option, given_config_file, use_config_file


def _commands(app: typer.Typer, path: str = "") -> Iterator[tuple[str, set[str]]]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.callback.__name__}", set(signature(command.callback).parameters)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(group.typer_instance, f"{path} {group.name}")


def test_every_command_takes_the_option() -> None:
    found = list(_commands(build_app()))
    assert len(found) > 40
    assert [name for name, parameters in found if "config" not in parameters] == []


def test_option_holds_for_the_command_alone() -> None:
    seen: list[Path | None] = []
    app = typer.Typer()

    @app.command()
    def look() -> None:
        seen.append(given_config_file())

    add_config_option(app)
    command = app.registered_commands[0].callback
    assert command is not None
    with use_config_file(Path("outer")):
        command(config=Path("inner"))
        command(config=None)
    seen.append(given_config_file())
    assert seen == [Path("inner"), Path("outer"), None]
