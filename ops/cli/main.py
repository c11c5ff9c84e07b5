"""The ``semantic`` command: a table of all commands, whose modules are imported on use only."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from ops.cli.options import EPILOG, ConfigFile, add_config_option, use_config_file
from ops.cli.output import echo
from ops.data_dir.permissions import create_private_files

#: Module, panel of the help and first line of the help of each command; the module has a function
#: of the command's name.
COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "serve": (
            "service.serve",
            "Serve",
            "Run the whole service in the foreground: broker, worker and api.",
        ),
        "run": (
            "jobs",
            "Use",
            "Send a prompt to the service and print the streamed answer; Ctrl-C cancels the job.",
        ),
        "launch": (
            "service.launch",
            "Use",
            "Start an agent on the running service; all other arguments are passed to it.",
        ),
        "replay": (
            "replay",
            "Look",
            "Compute a recorded answer again from the log; needs no service.",
        ),
        "status": (
            "service.status",
            "Look",
            "Show the running parts, the load, the jobs by status and the head of the log.",
        ),
        "logs": (
            "service.logs",
            "Look",
            "Print the log lines of all parts of the service, also when it does not run.",
        ),
        "usage": (
            "log.usage",
            "Look",
            (
                "Sum the ended jobs: tokens, cache and times, in UTC; works with and without a"
                " service."
            ),
        ),
        "engine": (
            "service.engine",
            "Serve",
            "Show the values in force, the admission of jobs and the workers, or change them.",
        ),
        "doctor": (
            "service.doctor",
            "Look",
            (
                "Check Python, the database, the broker, MLX, the data directory, the port and the"
                " model."
            ),
        ),
    }
)
#: Module, panel and help of each group; the module has its commands in ``COMMANDS``.
GROUPS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "jobs": ("jobs", "Use", "List, show, follow, cancel and retry jobs."),
        "agents": ("agents", "Look", "Who asked, and what is known of them."),
        "batch": ("batch", "Use", "Submit, follow and read batches."),
        "schedules": ("schedules", "Use", "List, add, pause and remove schedules of jobs."),
        "webhooks": (
            "webhooks",
            "Use",
            "List and resend webhooks; show the secret of their signatures.",
        ),
        "service": ("service.machine", "Serve", "Start the service with the machine."),
        "cache": ("cache", "Look", "The contexts on disk."),
        "models": ("models", "Look", "Models: list, plan, register, download, swap."),
        "config": (
            "service.config",
            "Look",
            "Show the settings in force; trust a directory's file.",
        ),
        "log": ("log.events", "Look", "The event log: list, check, back up, archive and erase."),
    }
)
#: All of them.
NAMES: Final = frozenset({*COMMANDS, *GROUPS})
#: An agent gets every argument that is not ours.
_CONTEXTS: Final = MappingProxyType(
    {"launch": {"allow_extra_args": True, "ignore_unknown_options": True}}
)
#: Set by shells that complete a command line; every name is needed then.
_COMPLETION_ENV = "_SEMANTIC_COMPLETE"


def main() -> None:
    """Run the command line; commands find the umask of the caller in ``context.obj``."""
    umask = create_private_files()
    used = NAMES if _COMPLETION_ENV in os.environ else NAMES.intersection(sys.argv[1:])
    build_app(used)(obj=umask)


def build_app(used: Collection[str] = NAMES) -> typer.Typer:
    """Return the application.

    Args:
        used: Commands and groups whose modules are imported; the others stand in the help only.
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
    for name, (place, panel, text) in COMMANDS.items():
        function = getattr(_module(place), name) if name in used else _absent
        app.command(
            name,
            help=None if name in used else text,
            epilog=EPILOG,
            rich_help_panel=panel,
            context_settings=_CONTEXTS.get(name),
        )(function)
    for name, (place, panel, text) in GROUPS.items():
        group = typer.Typer(no_args_is_help=True, help=text)
        for part, function in (_module(place).COMMANDS if name in used else {}).items():
            group.command(part, epilog=EPILOG)(function)
        app.add_typer(group, name=name, rich_help_panel=panel)
    add_config_option(app)
    return app


def _module(place: str) -> Any:  # noqa: ANN401 - a module
    return importlib.import_module(f"ops.cli.{place}")


def _absent() -> None:
    """Stand in the help for a command that is not used."""


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import PackageNotFoundError, version

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
