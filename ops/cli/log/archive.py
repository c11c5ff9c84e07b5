"""``semantic log archive``: move the beginning of the log into a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from ops.adapters.event_log.archives import directory_of
from ops.adapters.log_admin.archive import archive_log
from ops.adapters.log_admin.checkpoint_files import CheckpointFiles, sign_log
from ops.cli.log.instants import parse_instant
from ops.cli.log.log_options import errors_as_one_line, log_engine, read_settings
from ops.cli.options import DataDir
from ops.cli.output import echo
from ops.clock import RandomIds, SystemClock


def add_to(log: typer.Typer) -> None:
    """Add the command to the group."""
    log.command("archive")(archive)


def archive(
    before: Annotated[
        str, typer.Option("--before", help="Older events: 30d, 12h, or ISO 8601, UTC.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Move old events into a compressed file; open jobs stay, and the hash chain holds.

    The service may run. Keep the files: verify, rebuild and --as-of read them.
    """
    settings = read_settings(data_dir)
    url = settings.log_url
    limit = parse_instant(before, datetime.now(UTC))
    with errors_as_one_line(), log_engine(settings) as engine:
        done = archive_log(url, before=limit, clock=SystemClock(), ids=RandomIds())
        # A checkpoint vouches for the end of the file from here on.
        sign_log(engine, CheckpointFiles.of(settings.data_dir), clock=SystemClock())
    if as_json:
        stretch = asdict(done.archive) if done.archive else None
        report = {"archive": stretch, "events": done.events, "removed": done.removed}
        echo(json.dumps(report))
    elif done.archive is None:
        echo("nothing to archive")
    else:
        echo(f"{done.events:,} events in {directory_of(url) / done.archive.file}, verified")
        echo(f"{done.removed:,} of them left the log; the rest is still needed there")
