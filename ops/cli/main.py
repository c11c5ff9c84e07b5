"""The ``semantic`` command: one small module per command, heavy imports inside them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final

import typer

from ops.adapters.data_dir.permissions import create_private_files
from ops.cli.config_option import ConfigFile, add_config_option, use_config_file
from ops.cli.exit_codes import EPILOG
from ops.cli.log import LOG_HELP
from ops.cli.output import echo

#: Modules and the commands that each of them adds, in the order of the help.
MODULES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "service.serve": ("serve",),
        "run": ("run",),
        "service.claude": ("claude",),
        "jobs": ("jobs",),
        "agents": ("agents",),
        "batch": ("batch",),
        "replay": ("replay",),
        "webhooks": ("webhooks",),
        "service.status": ("status",),
        "service.logs": ("logs",),
        "log.usage": ("usage",),
        "service.engine": ("engine",),
        "service.machine": ("service",),
        "cache": ("cache",),
        "service.doctor": ("doctor",),
        "models": ("models",),
        "service.config": ("config",),
    }
)
#: The group whose modules import the database libraries: imported on use only.
LOG_GROUP: Final = "log"
#: Set by shells that complete a command line; every name is needed then.
_COMPLETION_ENV = "_SEMANTIC_COMPLETE"


def main() -> None:
    """Run the command line; commands find the umask of the caller in ``context.obj``."""
    umask = create_private_files()
    asked = None if _COMPLETION_ENV in os.environ else _asked(sys.argv[1:])
    build_app(asked, is_complete=_COMPLETION_ENV in os.environ)(obj=umask)


def build_app(asked: str | None = None, *, is_complete: bool = True) -> typer.Typer:
    """Return the application.

    Args:
        asked: Import and add only the module of this command; all without one.
        is_complete: Without ``asked``, whether to import the commands of ``LOG_GROUP``; else the
            group appears in the help only.
    """
    app = typer.Typer(
        name="semantic",
        help="Serve one local language model to many agents, as an event-sourced job queue.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for module, commands in MODULES.items():
        if asked is None or asked in commands:
            importlib.import_module(f"ops.cli.{module}").register(app)
    if asked == LOG_GROUP or (asked is None and is_complete):
        importlib.import_module("ops.cli.log.events").register(app)
    elif asked is None:
        app.add_typer(typer.Typer(help=LOG_HELP), name=LOG_GROUP, rich_help_panel="Look")
    add_config_option(app)
    return app


def _asked(words: Sequence[str]) -> str | None:
    """Return the command that a command line names, ``None`` where it is not certain."""
    names = {name for commands in MODULES.values() for name in commands} | {LOG_GROUP}
    first = 2 if words[:1] == ["--config"] else 0
    return words[first] if len(words) > first and words[first] in names else None


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - keeps --help fast

    try:
        echo(f"semantic {version('semantic')}")
    except PackageNotFoundError:
        echo("semantic (not installed)")
    raise typer.Exit


def _root(
    context: typer.Context,
    config: ConfigFile = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version  # handled by its callback
    context.with_resource(use_config_file(config))


if __name__ == "__main__":
    main()
