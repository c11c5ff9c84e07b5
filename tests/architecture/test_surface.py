"""How much an operator has to read: settings and commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from docs.site.settings_reference import groups
from ops.cli.main import build_app

#: ``[models.NAME]`` describes a model, and does not count.
SETTINGS_MAX = 50
COMMANDS_MAX = 49


def _commands(command: Any, name: str) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield name
        return
    for part, inner in command.commands.items():
        yield from _commands(inner, f"{name} {part}")


def test_a_limit_is_a_setting_only_if_an_operator_changes_it() -> None:
    single, grouped = groups()
    names = [*single]
    for name, group in grouped.items():
        names += [f"{name}.{field}" for field in group["properties"]]
    assert len(names) <= SETTINGS_MAX, sorted(names)


def test_a_subject_has_few_commands() -> None:
    found = list(_commands(typer.main.get_command(build_app()), "semantic"))
    assert len(found) <= COMMANDS_MAX, found
