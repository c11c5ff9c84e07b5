"""``semantic log upgrade``, ``backup``, ``restore``, ``archive``: tables and copies of the log."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from domain.log.checkpoints import required_hashes
from ops.cli.log.log_options import (
    errors_as_one_line,
    log_engine,
    nothing_runs,
    opened,
    progress_bar,
    read_settings,
)
from ops.cli.options import DataDir, parse_instant
from ops.cli.output import echo
from ops.clock import RandomIds, SystemClock
from ops.log.admin.archive import archive_log
from ops.log.admin.backup import back_up, restore, verify_restored
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log, sign_restore
from ops.log.archives import directory_of
from ops.log.database import disposed, reader_engine
from ops.log.migrate import current, expected, upgrade
from ops.log.projections.rebuild import ensure_projections, rebuild_projections


def upgrade_tables(
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; exit code 1 if the schema is another one."),
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Drop the projections, and fold the whole log anew.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Create or upgrade the tables, and fold the log into them; each start does it too."""
    if check:
        _check_schema(data_dir)
        return
    if rebuild:
        _rebuild(data_dir)
        return
    with errors_as_one_line(), progress_bar("folding the log") as progress:
        url = read_settings(data_dir).log_url
        before = current(url)
        after = upgrade(url)
        ensure_projections(url, progress=progress)
    state = "already at" if before == after else f"upgraded from {before or 'nothing'} to"
    echo(f"event log {state} schema {after}")


def _rebuild(data_dir: Path | None) -> None:
    settings = read_settings(data_dir)
    with opened(settings):
        with progress_bar("rebuilding projections") as progress:
            position = rebuild_projections(settings.log_url, progress=progress)
        echo(f"projections rebuilt from {position:,} events")


def _check_schema(data_dir: Path | None) -> None:
    """Print the schema of the tables; exit code 1 if it is not the one this program needs."""
    with errors_as_one_line():
        found = current(read_settings(data_dir).log_url)
    echo(f"event log at schema {found}, this program needs {expected()}")
    if found != expected():
        raise typer.Exit(1)


def back_up_log(
    copy: Annotated[Path, typer.Argument(metavar="FILE", help="The copy.")],
    data_dir: DataDir = None,
) -> None:
    """Copy the log to a new file while the service runs, and verify the copy."""
    settings = read_settings(data_dir)
    with opened(settings), progress_bar("verifying the copy") as progress:
        head = back_up(settings.log_url, copy, progress=progress)
    echo(f"{head.position:,} events in {copy}, verified; head {head.hash}")


def restore_log(
    copy: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The copy; needed without --sign.")
    ] = None,
    sign: Annotated[
        bool,
        typer.Option("--sign", help="Verify and sign a log that another tool has restored."),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Replace the log by a copy and keep the old one; refused while a service runs.

    With --sign, the log stays as it is: another tool, such as pg_restore, has restored it. Without
    the signature it counts as cut off at its end.
    """
    if sign == (copy is not None):
        raise typer.BadParameter("give a FILE, or --sign for a log that another tool has restored")
    if copy is None:
        _sign_restored(data_dir)
    else:
        _restore(copy, data_dir)


def _restore(copy: Path, data_dir: Path | None) -> None:
    settings = read_settings(data_dir)
    files = CheckpointFiles.of(settings.data_dir)
    kept_as = f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    with (
        errors_as_one_line(),
        nothing_runs(settings),
        progress_bar("verifying the copy") as progress,
    ):
        signed_hashes = required_hashes(files.read())
        done = restore(
            settings.log_url, copy, kept_as=kept_as, signed_hashes=signed_hashes, progress=progress
        )
        with disposed(reader_engine(settings.log_url)) as engine:
            sign_restore(engine, files, clock=SystemClock())
    echo(f"the log is back at {done.head.position:,} events; head {done.head.hash}")
    if done.kept is not None:
        echo(f"the log before is kept as {done.kept}")


def _sign_restored(data_dir: Path | None) -> None:
    settings = read_settings(data_dir)
    files = CheckpointFiles.of(settings.data_dir)
    with (
        errors_as_one_line(),
        nothing_runs(settings),
        log_engine(settings) as engine,
        progress_bar("verifying the log") as progress,
    ):
        signed_hashes = required_hashes(files.read())
        head = verify_restored(
            engine, settings.log_url, signed_hashes=signed_hashes, progress=progress
        )
        signed = sign_restore(engine, files, clock=SystemClock())
    echo(f"{head.position:,} events verify; head {head.hash}")
    if signed is None:
        echo("this directory has signed no head before, so there is nothing to sign")
    else:
        echo("signed as restored: later heads that were signed before are void")


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
    limit = parse_instant(before)
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
