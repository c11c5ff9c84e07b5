"""``semantic log``: list, follow and export the log."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from domain.log.record import RecordedEvent
from ops.adapters.event_log.event_file import event_line, write_events
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.reader import LogReader, follow
from ops.cli.log import LOG_HELP, archive, check, db, erase, retention
from ops.cli.log.log_options import (
    AfterOption,
    AgentOption,
    JsonOption,
    PipeClosed,
    SinceOption,
    StreamOption,
    TypeOption,
    UntilOption,
    leaving_quietly,
    opened,
    printer,
    read_settings,
    wanted,
)
from ops.cli.options import DataDir
from ops.cli.output import echo, echo_data
from ops.cli.table import print_pairs

#: Most events that one ``ls`` prints; ``export`` has no such limit.
LS_EVENTS_MAX = 100_000


def register(app: typer.Typer) -> None:
    """Add the ``log`` commands to ``app``."""
    log = typer.Typer(help=LOG_HELP, no_args_is_help=True)
    log.command("ls")(ls)
    log.command("tail")(tail_events)
    log.command("show")(show)
    log.command("export")(export)
    for module in (check, db, archive, erase, retention):
        module.add_to(log)
    app.add_typer(log, name="log", rich_help_panel="Look")


def ls(
    *,
    stream: StreamOption = None,
    types: TypeOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: AfterOption = 0,
    limit: Annotated[int, typer.Option(min=1, max=LS_EVENTS_MAX, help="Most rows.")] = 100,
    as_json: JsonOption = False,
    data_dir: DataDir = None,
) -> None:
    """List events from old to new."""
    choice = wanted(stream=stream, types=types, agent=agent, since=since, until=until)
    with opened(read_settings(data_dir)) as engine, leaving_quietly():
        print_event = printer(as_json=as_json)
        for event in EventQuery(engine, choice).each(after=after, limit=limit):
            print_event(event)


def tail_events(
    *,
    stream: StreamOption = None,
    types: TypeOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Past events.")] = 10,
    follow_on: Annotated[bool, typer.Option("--follow/--no-follow", "-f")] = True,
    as_json: JsonOption = False,
    data_dir: DataDir = None,
) -> None:
    """Show the last events and follow new ones until Ctrl-C."""
    choice = wanted(stream=stream, types=types, agent=agent, since=since)
    with opened(read_settings(data_dir)) as engine, leaving_quietly():
        query = EventQuery(engine, choice)
        # Read first: an event that is recorded in between is not missed.
        head = LogReader(engine).head().position
        past = query.last(lines)
        print_event = printer(as_json=as_json)
        for event in past:
            print_event(event)
        if follow_on:
            after = past[-1].position if past else head
            for event in follow(query.after, after=after, stopped=PipeClosed()):
                print_event(event)


def show(
    position: Annotated[int, typer.Argument(min=1, help="Position in the log.")],
    as_json: JsonOption = False,
    data_dir: DataDir = None,
) -> None:
    """Show one event and whether its hash holds."""
    with opened(read_settings(data_dir)) as engine:
        found = LogReader(engine).read_all(after=position - 1, limit=1)
    if not found or found[0].position != position:
        echo(f"error: there is no event at position {position}", err=True)
        raise typer.Exit(1)
    event = found[0]
    is_whole = event.computed_hash() == event.hash
    if as_json:
        echo(json.dumps(dataclasses.asdict(event) | {"hash_fits": is_whole}))
        return
    fields = dataclasses.asdict(event) | {"hash fits": "yes" if is_whole else "NO: it was changed"}
    data = fields.pop("data")
    print_pairs([(name, "" if value is None else str(value)) for name, value in fields.items()])
    echo(json.dumps(data, indent=2))


def export(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new file; .gz is compressed.")
    ] = None,
    stream: StreamOption = None,
    types: TypeOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: AfterOption = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Most events.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write events with their hashes as JSON lines; ``verify --file`` checks them."""
    choice = wanted(stream=stream, types=types, agent=agent, since=since, until=until)
    with opened(read_settings(data_dir)) as engine, leaving_quietly():
        events = EventQuery(engine, choice).each(after=after, limit=limit)
        if out is None:
            _print_lines(events)
        else:
            count = write_events(out, events)
            echo(f"{count:,} events in {out}")


def _print_lines(events: Iterator[RecordedEvent]) -> None:
    for event in events:
        echo_data(event_line(event))
