"""``semantic db``: schema, backup and restore of the event log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from domain.log.checkpoints import required_hashes
from ops.adapters.event_log.database import reader_engine
from ops.adapters.event_log.migrate import current, expected, upgrade
from ops.adapters.event_log.projections.rebuild import ensure_projections
from ops.adapters.log_admin.backup import back_up, restore, verify_restored
from ops.adapters.log_admin.checkpoint_files import CheckpointFiles, sign_restore
from ops.cli.log.exclusive import nothing_runs
from ops.cli.log.log_options import (
    errors_as_one_line,
    log_engine,
    opened,
    progress_bar,
    read_settings,
)
from ops.cli.options import DataDir
from ops.cli.output import echo
from ops.clock import SystemClock

CopyArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The copy.")]


def register(app: typer.Typer) -> None:
    """Add the ``db`` commands to ``app``."""
    db = typer.Typer(help="The tables of the event log.", no_args_is_help=True)
    db.command("upgrade")(upgrade_tables)
    db.command("current")(show_current)
    db.command("backup")(back_up_log)
    db.command("restore")(restore_log)
    db.command("sign-restore")(sign_restored_log)
    app.add_typer(db, name="db")


def upgrade_tables(data_dir: DataDir = None) -> None:
    """Create or upgrade the tables, and fold the log into them; each start does it too."""
    with errors_as_one_line(), progress_bar("folding the log") as progress:
        url = read_settings(data_dir).log_url
        before = current(url)
        after = upgrade(url)
        ensure_projections(url, progress=progress)
    state = "already at" if before == after else f"upgraded from {before or 'nothing'} to"
    echo(f"event log {state} schema {after}")


def show_current(data_dir: DataDir = None) -> None:
    """Print the schema of the tables; exit code 1 if it is not the one this program needs."""
    with errors_as_one_line():
        found = current(read_settings(data_dir).log_url)
    echo(f"event log at schema {found}, this program needs {expected()}")
    if found != expected():
        raise typer.Exit(1)


def back_up_log(copy: CopyArgument, data_dir: DataDir = None) -> None:
    """Copy the log to a new file while the service runs, and verify the copy."""
    settings = read_settings(data_dir)
    with opened(settings), progress_bar("verifying the copy") as progress:
        head = back_up(settings.log_url, copy, progress=progress)
    echo(f"{head.position:,} events in {copy}, verified; head {head.hash}")


def restore_log(copy: CopyArgument, data_dir: DataDir = None) -> None:
    """Replace the log by a copy and keep the old one; refused while a service runs."""
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
        engine = reader_engine(settings.log_url)
        try:
            sign_restore(engine, files, clock=SystemClock())
        finally:
            engine.dispose()
    echo(f"the log is back at {done.head.position:,} events; head {done.head.hash}")
    if done.kept is not None:
        echo(f"the log before is kept as {done.kept}")


def sign_restored_log(data_dir: DataDir = None) -> None:
    """Verify a log that another tool restored, as pg_restore does, and sign it as restored.

    Without the signature the log counts as cut off at its end. Refused while a service runs.
    """
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
