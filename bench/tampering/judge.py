"""Decides whether a change of a log is found, or provably has no effect."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.tampering.sample import LOG_NAME, url_of
from domain.errors import SemanticError
from domain.log.checkpoints import required_hashes
from ops.log.admin.checkpoint_files import CheckpointFiles
from ops.log.admin.verify import VerifiedLog, verify_whole_log
from ops.log.archives import DIRECTORY, read_events
from ops.log.database import reader_engine
from ops.log.migrate import refuse_newer_program
from ops.log.sqlite_driver import driver_module, single_spaced


class Verdict(StrEnum):
    """The effect of a change."""

    FOUND = "found"
    #: All that can be read is what it was.
    HARMLESS = "harmless"
    MISSED = "missed"
    #: The verification ended with an error that has no type.
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The effect of a change, and by what it was found."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """All that readers of a directory can see: the verification's report, and every value."""

    report: VerifiedLog
    heads: tuple[Any, ...]
    values: tuple[Any, ...]


def content_of(directory: Path) -> Content:
    """Verify a directory as ``semantic log verify`` does, and read all of it.

    Raises:
        SemanticError: It does not verify.
    """
    report, heads = _verified(directory)
    return Content(report, heads, _values(directory))


def judge(directory: Path, original: Content) -> Judgement:
    """Verify a changed directory and compare what passes with the original."""
    try:
        report, heads = _verified(directory)
    except SemanticError as error:
        return Judgement(Verdict.FOUND, f"{error.code}: {error.message}")
    except Exception as error:  # noqa: BLE001 - any other error is a finding
        return Judgement(Verdict.CRASHED, repr(error))
    if report != original.report:
        return Judgement(Verdict.FOUND, f"reported: {report}")
    if heads == original.heads and _values(directory) == original.values:
        return Judgement(Verdict.HARMLESS)
    return Judgement(Verdict.MISSED)


def _verified(directory: Path) -> tuple[VerifiedLog, tuple[Any, ...]]:
    url, files = url_of(directory), CheckpointFiles.of(directory)
    heads = files.read()
    refuse_newer_program(url)
    engine = reader_engine(url)
    try:
        report = verify_whole_log(engine, url, signed_hashes=required_hashes(heads))
    finally:
        engine.dispose()
    return report, heads


def _values(directory: Path) -> tuple[Any, ...]:
    """Return every row of every table, every archived event, and the key of the heads."""
    with closing(driver_module().connect(str(directory / LOG_NAME))) as raw:
        entries = raw.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
        # SQLite reads every white space between the words of a statement alike.
        schema = sorted((*names, single_spaced(sql)) for *names, sql in entries)
        rows = tuple(
            (name, tuple(_typed(row) for row in raw.execute(f'SELECT rowid, * FROM "{name}"')))  # noqa: S608 - own names
            for kind, name, _, _ in schema
            if kind == "table"
        )
    archived = tuple(
        (path.name, tuple(read_events(path))) for path in sorted((directory / DIRECTORY).iterdir())
    )
    return tuple(schema), rows, archived, CheckpointFiles.of(directory).load_key()


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((type(value), value) for value in row)
