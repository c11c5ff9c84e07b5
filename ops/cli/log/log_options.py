"""Shared by the log commands: options, engines, locks, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy import Engine

from domain.errors import LogNewer, LogUnavailable, SemanticError
from ops.cli.options import operator_settings, overrides
from ops.cli.output import echo
from ops.data_dir.lock import DataLock
from ops.exit_codes import ExitCode
from ops.log.database import database_file, disposed, reader_engine
from ops.log.migrate import current, refuse_newer_program
from ops.settings.settings import Settings
from ops.supervisor.serve_record import CannotServe, serve_lock
from ops.supervisor.startup_banner import without_password

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def read_settings(data_dir: Path | None) -> Settings:
    """Return the settings, or exit with one line about the invalid setting."""
    return operator_settings(overrides(data_dir=data_dir))


@contextmanager
def log_engine(settings: Settings) -> Iterator[Engine]:
    """Yield an engine on an existing log; exit where there is none.

    Raises:
        LogNewer: A newer program has written to the log.
    """
    if current(settings.log_url) is None:
        place = database_file(settings.log_url) or without_password(settings.log_url)
        echo(f"there is no event log at {place}", err=True)
        raise typer.Exit(1)
    refuse_newer_program(settings.log_url)
    with disposed(reader_engine(settings.log_url)) as engine:
        yield engine


@contextmanager
def opened(settings: Settings) -> Iterator[Engine]:
    """Yield the engine of ``log_engine``; typed errors become one line and exit code 1."""
    with errors_as_one_line(), log_engine(settings) as engine:
        yield engine


@contextmanager
def errors_as_one_line() -> Iterator[None]:
    """Turn a ``SemanticError`` into one line and exit code 1; 78 for the log of a newer program."""
    try:
        yield
    except LogNewer as error:
        echo(f"error: {error.message}", err=True)
        raise typer.Exit(int(ExitCode.CONFIG)) from error
    except SemanticError as error:
        echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that advances a progress bar, or ``None`` without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def nothing_runs(settings: Settings) -> Iterator[None]:
    """Hold the locks of a service and its parts.

    Raises:
        LogUnavailable: A service, or one of its parts, runs.
        DataDirLocked: A worker runs on its own.
    """
    try:
        with (
            serve_lock(settings.data_dir) as leftovers,
            DataLock(settings.data_dir / "worker.lock"),
        ):
            if leftovers is not None and leftovers.has_living_parts():
                raise LogUnavailable("parts of a service are still ending; try again in a moment")
            yield
    except CannotServe as error:
        raise LogUnavailable(f"{error}; stop it first") from error
