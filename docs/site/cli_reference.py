"""The page of all commands, from the application that the ``semantic`` command builds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import typer.main

from docs.site.tables import GENERATED, prose, table
from ops.cli.main import build_app
from ops.exit_codes import MEANINGS, ExitCode

_HEAD = """
# Command line

For users of the `semantic` command. Every command takes `--config FILE` and `--help`. Commands that
read take `--json`, whose output scripts may rely on.
"""

_VALUES: Final = defaultdict(lambda: "TEXT", {"Path": "PATH", "int": "N", "float": "NUMBER"})


def render() -> str:
    """Return the page."""
    parts = [GENERATED, _HEAD, "## Exit codes", ""]
    parts += table(("code", "meaning"), ((f"`{code:d}`", MEANINGS[code]) for code in ExitCode))
    for path, command in commands():
        parts += _described(path, command)
    return "\n".join(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command that is shown in a help, and each group, by its path."""
    yield from _below("semantic", typer.main.get_command(build_app()))


def _below(path: str, group: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of typer's own click
    for name, command in sorted(getattr(group, "commands", {}).items()):
        if not command.hidden:
            yield f"{path} {name}", command
            yield from _below(f"{path} {name}", command)


def _described(path: str, command: Any) -> Iterator[str]:  # noqa: ANN401 - of typer's own click
    yield from (f"{'#' * path.count(' ')}# {path}", "")
    yield from (prose(command.help or ""), "")
    if hasattr(command, "commands"):
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one not in arguments and not one.hidden]
    usage = " ".join([path, "[OPTIONS]", *map(_word, arguments)])
    yield from ("```", usage, "```", "")
    yield from table(
        ("argument", "meaning"), ((f"`{_word(one)}`", _meaning(one)) for one in arguments)
    )
    yield from table(
        ("option", "meaning"),
        ((_names(one), _meaning(one)) for one in options if one.name != "config"),
    )


def _word(argument: Any) -> str:  # noqa: ANN401 - of typer's own click
    word = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs < 0 else "")
    return word if argument.required else f"[{word}]"


def _names(option: Any) -> str:  # noqa: ANN401 - of typer's own click
    value = "" if option.is_flag else f" {option.metavar or _VALUES[option.bare_type()]}"
    return ", ".join(f"`{name}{value}`" for name in (*option.opts, *option.secondary_opts))


def _meaning(parameter: Any) -> str:  # noqa: ANN401 - of typer's own click
    text = prose(parameter.help or "")
    choices = parameter.type_descriptor.choices
    if choices:
        text += " One of " + ", ".join(f"`{one.value}`" for one in choices) + "."
    default = getattr(parameter.default, "value", parameter.default)
    if default is True:
        default = parameter.opts[0]
    if default in (None, False, (), "") or callable(default):
        return text
    return f"{text} Default: `{default}`."
