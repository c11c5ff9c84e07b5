"""``semantic log verify``, and the head of the log."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from domain.errors import CorruptLog, LogUnavailable, SemanticError
from domain.log.checkpoints import required_hashes
from ops.cli.log.log_options import (
    JsonOption,
    errors_as_one_line,
    log_engine,
    opened,
    progress_bar,
    read_settings,
)
from ops.cli.options import DataDir
from ops.cli.output import echo, echo_data
from ops.clock import SystemClock
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log
from ops.log.admin.projections_check import ProjectionState
from ops.log.admin.verify import Watchers, verify_whole_log
from ops.log.archives import verify_file
from ops.log.reader import LogReader
from ops.settings.settings import Settings

_PROJECTIONS = {
    ProjectionState.VERIFIED: "the database and its projections verify",
    ProjectionState.BEHIND: "the database verifies; its projections are of an earlier state, which "
    "the next start brings up to date",
    ProjectionState.ARCHIVE_MISSING: "the database verifies; its projections were not compared, "
    "since an archive is not here",
}


def verify(
    file: Annotated[
        Path | None, typer.Option("--file", help="An export or an archive instead of the log.")
    ] = None,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", help="Signed checkpoints; default: those of the data directory."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Their key; default: that of the data directory.")
    ] = None,
    as_json: JsonOption = False,
    data_dir: DataDir = None,
) -> None:
    """Check the whole log; exit code 1 and the first bad position if a part does not verify.

    Verified are the pages and tables of the database, the archives, the hash chain, all texts, and
    the projections, which are compared with a fold of the events.

    Signed checkpoints, if there are any, prove that the end of the log is complete.
    """
    settings = read_settings(data_dir)
    with errors_as_one_line():
        try:
            report = _verified(settings, file, heads, key)
        except SemanticError as error:
            if not as_json:
                raise
            position = error.position if isinstance(error, CorruptLog) else None
            bad = {"ok": False, "position": position, "message": error.message}
            echo(json.dumps(bad))
            raise typer.Exit(1) from error
    if as_json:
        echo(json.dumps({"ok": True} | report))
        return
    _print(report)


def _print(report: dict[str, Any]) -> None:
    echo(f"{report['events']:,} events verify ({report['events_per_s']:,} events/s)")
    if report.get("gaps"):
        echo("a selection: each event is unchanged; the events between them are not in the file")
    if report["heads"]:
        echo(f"{report['heads']:,} signed heads fit")
    if report.get("archives"):
        echo(f"{report['archives']:,} archives verify, which hold the beginning")
    for name in report.get("archives_missing", ()):
        echo(f"the archive {name} is not here; its events were not checked", err=True)
    if report.get("archives_erased"):
        echo(f"{report['archives_erased']:,} archives were erased, as retention wants")
    if "texts" in report:
        echo(f"{report['texts']:,} texts verify ({report['text_bytes']:,} bytes)")
    if report.get("texts_erased"):
        echo(f"{report['texts_erased']:,} more were erased")
    if "projections" in report:
        echo(_PROJECTIONS[ProjectionState(report["projections"])])
    echo(f"head {report['hash']}")


def print_head(*, sign: bool, as_json: bool, data_dir: Path | None) -> None:
    """Print the last position and its hash, or a signed checkpoint of it."""
    settings = read_settings(data_dir)
    with opened(settings) as engine:
        if sign:
            checkpoint = sign_log(
                engine, CheckpointFiles.of(settings.data_dir), clock=SystemClock()
            )
            echo_data(checkpoint.to_line())
            return
        head = LogReader(engine).head()
    if as_json:
        echo(json.dumps(dataclasses.asdict(head)))
    else:
        echo(f"{head.position} {head.hash}")


def _verified(
    settings: Settings, file: Path | None, heads: Path | None, key: Path | None
) -> dict[str, Any]:
    signed_hashes = _signed_hashes(settings, heads, key)
    started_s = time.monotonic()
    report = _verified_file(file, signed_hashes) if file else _verified_log(settings, signed_hashes)
    spent_s = max(time.monotonic() - started_s, 1e-6)
    return report | {"events_per_s": round(report["events"] / spent_s)}


def _verified_log(settings: Settings, signed_hashes: dict[int, str]) -> dict[str, Any]:
    with (
        log_engine(settings) as engine,
        progress_bar("verifying") as chain,
        progress_bar("reading texts") as texts,
        progress_bar("folding") as projections,
    ):
        found = verify_whole_log(
            engine,
            settings.log_url,
            signed_hashes=signed_hashes,
            watchers=Watchers(chain=chain, texts=texts, projections=projections),
        )
    return {
        "texts": found.texts.payloads,
        "text_bytes": found.texts.size_bytes,
        "texts_erased": found.texts.erased,
        "events": found.head.position,
        "hash": found.head.hash,
        "heads": len(signed_hashes),
        "archives": found.archives.verified,
        "archives_erased": found.archives.erased,
        "archives_missing": list(found.archives.missing),
        "projections": found.projections.value,
    }


def _verified_file(file: Path, signed_hashes: dict[int, str]) -> dict[str, Any]:
    found = verify_file(file, signed_hashes=signed_hashes)
    return {
        "events": found.events,
        "after": found.base.position if found.base else None,
        "hash": found.head.hash if found.head else None,
        "gaps": found.gaps,
        "heads": len(signed_hashes),
    }


def _signed_hashes(settings: Settings, heads: Path | None, key: Path | None) -> dict[int, str]:
    """Return the hashes that checkpoints require, by position.

    Raises:
        LogUnavailable: A named file does not exist.
        ForgedCheckpoint: A checkpoint was not signed with the key.
    """
    own = CheckpointFiles.of(settings.data_dir)
    files = CheckpointFiles(key=key or own.key, checkpoints=heads or own.checkpoints)
    if heads is not None and not heads.exists():
        raise LogUnavailable(f"there are no heads at {heads}")
    return required_hashes(files.read())
