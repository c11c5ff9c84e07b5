"""``semantic top``."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.access import access_or_exit
from ops.cli.client import client_of, service
from ops.cli.exit_codes import EPILOG
from ops.cli.options import DataDir, Json
from ops.cli.output import echo
from ops.cli.top.feed import snapshot
from ops.cli.top.text import snapshot as snapshot_lines

if TYPE_CHECKING:
    from pathlib import Path


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EPILOG, rich_help_panel="Look")(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one plain snapshot and end.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Watch what the service does: running, waiting and ended jobs, memory, rates.

    Keys: c cancels the job under the cursor, enter opens its timeline, p pauses or resumes the
    start of jobs, tab goes to the next table, q quits. Where the output is no terminal, one plain
    snapshot is printed. NO_COLOR=1 switches colours off.
    """
    if json or once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print_snapshot(data_dir, as_json=json)
        return
    from ops.cli.top.app import TopApp  # noqa: PLC0415 - Textual takes long to import

    access = access_or_exit(data_dir)
    TopApp(lambda: client_of(access)).run()


def _print_snapshot(data_dir: Path | None, *, as_json: bool) -> None:
    with service(data_dir) as client:
        found = snapshot(client, time.sleep)
    if as_json:
        echo(jsonlib.dumps(found, indent=2))
        return
    for line in snapshot_lines(found):
        echo(line)
