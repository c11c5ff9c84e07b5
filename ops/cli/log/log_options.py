"""Shared by the log commands: options, engines, progress, printing of events."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from sqlalchemy import Engine

from domain.errors import LogNewer, LogUnavailable, SemanticError
from domain.log.codec import texts_of
from domain.log.record import EventFilter, RecordedEvent
from ops.adapters.data_dir.lock import DataLock
from ops.adapters.event_log.database import database_file, reader_engine
from ops.adapters.event_log.migrate import current, refuse_newer_program
from ops.cli.options import operator_settings, overrides, parse_instant
from ops.cli.output import echo
from ops.exit_codes import ExitCode
from ops.settings import Settings
from ops.supervisor.serve_record import CannotServe, serve_lock
from ops.supervisor.startup_banner import without_password
from ops.terminal_text import visible_line

_TYPE_WIDTH = len("JobCancelRequested")
_STREAM_WIDTH = 36
_ENDED_WELL = ("Completed", "Loaded", "Started")
_ENDED_BADLY = ("Failed", "Lost", "Expired")

StreamOption = Annotated[
    str | None,
    typer.Option("--stream", "--job", help="Only this stream; a job's stream is named like it."),
]
TypeOption = Annotated[list[str] | None, typer.Option("--type", help="Only this type; repeatable.")]
AgentOption = Annotated[str | None, typer.Option("--agent", help="Only this agent and its jobs.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="From this instant on: 10m, 2h, 3d, or ISO 8601, UTC.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="Before this instant; written like --since.")
]
AfterOption = Annotated[int, typer.Option("--after", min=0, help="Position before the first.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
CheckpointsOption = Annotated[
    Path | None,
    typer.Option("--heads", help="Signed checkpoints; default: those of the data directory."),
]
KeyOption = Annotated[
    Path | None, typer.Option("--key", help="Their key; default: that of the data directory.")
]


def wanted(
    *,
    stream: str | None = None,
    types: list[str] | None = None,
    agent: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> EventFilter:
    """Return the filter of the options."""
    return EventFilter(
        stream=stream,
        types=tuple(types or ()),
        agent=agent,
        since=since and parse_instant(since),
        until=until and parse_instant(until),
    )


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
    engine = reader_engine(settings.log_url)
    try:
        yield engine
    finally:
        engine.dispose()


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
def leaving_quietly() -> Iterator[None]:
    """Exit with success when the reader of the output is gone or on Ctrl-C."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Python flushes stdout at exit, and needs a descriptor that accepts the bytes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class PipeClosed(threading.Event):
    """Set when the reader of standard output is gone; checked while waiting."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the reader is gone or the time is over."""
        try:
            output = sys.stdout.fileno()
        except OSError:  # a captured output has no descriptor and no reader
            return super().wait(timeout)
        poll = select.poll()
        poll.register(output, 0)  # poll reports a pipe error without a flag
        if poll.poll(None if timeout is None else timeout * 1000):
            self.set()
        return self.is_set()


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


def printer(*, as_json: bool) -> Callable[[RecordedEvent], None]:
    """Return a function that prints an event on one line."""
    if as_json:
        return lambda event: echo(json.dumps(event.envelope() | {"texts": texts_of(event)}))
    console = Console()
    if not console.is_terminal:
        return lambda event: echo(_line(event).plain)
    # A terminal gets one line for each event, cut at its edge.
    return lambda event: console.print(_line(event), no_wrap=True, overflow="ellipsis")


def _line(event: RecordedEvent) -> Text:
    data = json.dumps({**event.data, **texts_of(event)}, ensure_ascii=True, separators=(",", ":"))
    return Text.assemble(
        (f"{event.position:>7} ", "bold"),
        (f"{event.recorded_at[:23].replace('T', ' ')} ", "dim"),
        (f"{visible_line(event.stream):<{_STREAM_WIDTH}} ", "cyan"),
        (f"{event.version:>3} ", "dim"),
        (f"{visible_line(event.type):<{_TYPE_WIDTH}} ", _colour(event.type)),
        data,
    )


def _colour(type_name: str) -> str:
    if type_name.endswith(_ENDED_BADLY):
        return "red"
    if type_name.endswith(_ENDED_WELL):
        return "green"
    return "yellow" if "Cancel" in type_name else "blue"


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
                msg = "parts of a service are still ending; try again in a moment"
                raise LogUnavailable(msg)
            yield
    except CannotServe as error:
        msg = f"{error}; stop it first"
        raise LogUnavailable(msg) from error
