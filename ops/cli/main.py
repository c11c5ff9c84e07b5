"""The ``semantic`` command: one small module per command, heavy imports inside them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from typing import Annotated

import typer

from ops.cli.agents import agents, cache
from ops.cli.config_option import ConfigFile, add_config_option, use_config_file
from ops.cli.exit_codes import EPILOG
from ops.cli.jobs import batch, jobs, replay, run, webhooks
from ops.cli.models import models
from ops.cli.service import claude, config, doctor, engine, machine, serve, status

#: Groups whose modules import the database libraries: imported on use only.
LAZY_GROUPS = {"events": "The event log.", "db": "The event log's tables."}
#: Set by shells that complete a command line; every name is needed then.
_COMPLETION_ENV = "_SEMANTIC_COMPLETE"


def main() -> None:
    """Run the command line."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    # The second word is the command after --config FILE.
    asked = set(LAZY_GROUPS) if _COMPLETION_ENV in os.environ else set(words[:2])
    build_app(asked)()


def build_app(asked: Collection[str] = frozenset(LAZY_GROUPS)) -> typer.Typer:
    """Return the application with every command.

    Args:
        asked: Which of the ``LAZY_GROUPS`` to import; the others appear in the help only.
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
    for module in (
        serve,
        run,
        claude,
        jobs,
        agents,
        batch,
        replay,
        webhooks,
        status,
        engine,
        machine,
        cache,
        doctor,
        models,
        config,
    ):
        module.register(app)
    for name, text in LAZY_GROUPS.items():
        if name in asked:
            importlib.import_module(f"ops.cli.log.{name}").register(app)
        else:
            app.add_typer(typer.Typer(help=text), name=name, rich_help_panel="Look")
    add_config_option(app)
    return app


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - keeps --help fast

    try:
        typer.echo(f"semantic {version('semantic')}")
    except PackageNotFoundError:
        typer.echo("semantic (not installed)")
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
