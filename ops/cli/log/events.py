"""``semantic log``: list, follow and export the log."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from domain.log.record import RecordedEvent
from ops.adapters.event_log.archives import event_line, write_events
from ops.adapters.event_log.reader import LogReader, follow
from ops.cli.log import check, db, erase
from ops.cli.log.check import print_head
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
from ops.cli.output import echo, echo_data, print_json, print_pairs

#: Events that ``ls`` prints by default, and of those that are there with ``--follow``.
LS_EVENTS = 100
FOLLOWED_EVENTS = 10


def ls(
    *,
    stream: StreamOption = None,
    types: TypeOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: AfterOption = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most events; default: 100, of an export any.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=0, help="The last events only.")
    ] = None,
    follow_on: Annotated[
        bool,
        typer.Option("--follow", "-f", help="The last events (10), then new ones until Ctrl-C."),
    ] = False,
    export: Annotated[
        bool,
        typer.Option("--export", help="Whole events as JSON lines, which verify --file checks."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Export to a new file; .gz is compressed.")
    ] = None,
    as_json: JsonOption = False,
    data_dir: DataDir = None,
) -> None:
    """List events from old to new, follow the log, or export it."""
    choice = wanted(stream=stream, types=types, agent=agent, since=since, until=until)
    with opened(read_settings(data_dir)) as engine, leaving_quietly():
        log = LogReader(engine)
        if export or out is not None:
            _export(log.walk(choice, after=after, limit=limit), out)
            return
        # Read first: an event that is recorded in between is not missed.
        head = log.head().position
        print_event = printer(as_json=as_json)
        past: Iterable[RecordedEvent]
        if follow_on or last is not None:
            most = FOLLOWED_EVENTS if last is None else last
            past = log.select_before(choice, before=None, limit=most)
        else:
            past = log.walk(choice, after=after, limit=limit or LS_EVENTS)
        for event in past:
            head = event.position
            print_event(event)
        if follow_on:
            for event in follow(log, choice, after=head, stopped=PipeClosed()):
                print_event(event)


def _export(events: Iterator[RecordedEvent], out: Path | None) -> None:
    if out is None:
        for event in events:
            echo_data(event_line(event))
    else:
        count = write_events(out, events)
        echo(f"{count:,} events in {out}")


def show(
    position: Annotated[
        int | None, typer.Argument(min=1, help="Position in the log; default: its head.")
    ] = None,
    sign: Annotated[
        bool, typer.Option("--sign", help="Sign the head and append it to heads.jsonl.")
    ] = False,
    as_json: JsonOption = False,
    data_dir: DataDir = None,
) -> None:
    """Show one event and whether its hash holds, or the last position and its hash."""
    if position is None:
        print_head(sign=sign, as_json=as_json, data_dir=data_dir)
        return
    if sign:
        raise typer.BadParameter("only the head is signed: give no position with --sign")
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
    print_json(data)


#: The commands of the group, by name.
COMMANDS: Final = {
    "ls": ls,
    "show": show,
    "verify": check.verify,
    "upgrade": db.upgrade_tables,
    "backup": db.back_up_log,
    "restore": db.restore_log,
    "archive": db.archive,
    "erase": erase.erase,
}
