"""``semantic log``: list, follow and export the log."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from domain.log.codec import texts_of
from domain.log.record import EventFilter, RecordedEvent
from ops.cli.log import check, db, erase
from ops.cli.log.check import print_head
from ops.cli.log.log_options import (
    JsonOption,
    opened,
    read_settings,
)
from ops.cli.options import DataDir, parse_instant
from ops.cli.output import echo, echo_data, print_json, print_pairs
from ops.log.archives import event_line, write_events
from ops.log.reader import LogReader, follow
from ops.terminal_text import visible_line

#: Events that ``ls`` prints by default, and of those that are there with ``--follow``.
LS_EVENTS = 100
FOLLOWED_EVENTS = 10

_TYPE_WIDTH = len("JobCancelRequested")
_STREAM_WIDTH = 36
_ENDED_WELL = ("Completed", "Loaded", "Started")
_ENDED_BADLY = ("Failed", "Lost", "Expired")

StreamOption = Annotated[
    str | None,
    typer.Option("--stream", "--job", help="Only this stream; a job's stream is named like it."),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", help="From this instant on: 10m, 2h, 3d, or ISO 8601, UTC."),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="Before this instant; written like --since.")
]
TypeOption = Annotated[list[str] | None, typer.Option("--type", help="Only this type; repeatable.")]


def ls(
    *,
    stream: StreamOption = None,
    types: TypeOption = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="Only this agent and its jobs.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Position before the first.")] = 0,
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
    choice = EventFilter(
        stream=stream,
        types=tuple(types or ()),
        agent=agent,
        since=since and parse_instant(since),
        until=until and parse_instant(until),
    )
    with opened(read_settings(data_dir)) as engine, _leaving_quietly():
        log = LogReader(engine)
        if export or out is not None:
            _export(log.walk(choice, after=after, limit=limit), out)
            return
        # Read first: an event that is recorded in between is not missed.
        head = log.head().position
        print_event = _printer(as_json=as_json)
        past: Iterable[RecordedEvent]
        if follow_on or last is not None:
            most = FOLLOWED_EVENTS if last is None else last
            past = log.select_before(choice, limit=most)
        else:
            past = log.walk(choice, after=after, limit=limit or LS_EVENTS)
        for event in past:
            head = event.position
            print_event(event)
        if follow_on:
            for event in follow(log, choice, after=head, stopped=_PipeClosed()):
                print_event(event)


@contextmanager
def _leaving_quietly() -> Iterator[None]:
    """Exit with success when the reader of the output is gone or on Ctrl-C."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Python flushes stdout at exit, and needs a descriptor that accepts the bytes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _PipeClosed(threading.Event):
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


def _printer(*, as_json: bool) -> Callable[[RecordedEvent], None]:
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


def _export(events: Iterator[RecordedEvent], out: Path | None) -> None:
    if out is not None:
        echo(f"{write_events(out, events):,} events in {out}")
        return
    for event in events:
        echo_data(event_line(event))


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
        found = LogReader(engine).select(after=position - 1, limit=1)
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
