"""Copies of the log's database: taken while it is written to, and put back.

A copy is one transaction's view (``VACUUM INTO``): whole, without a write-ahead log beside it, and
without what was deleted. Both ways the new file is complete and verified under another name before
one rename puts it in its place, so a process that is killed leaves the old state or the new one.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domain.errors import CorruptLog, LogUnavailable
from domain.log.record import LogHead
from ops.adapters.data_dir.sync import sync_directory
from ops.adapters.event_log.database import database_file, reader_engine
from ops.adapters.event_log.migrate import current
from ops.adapters.event_log.reader import LogReader
from ops.adapters.event_log.sqlite_driver import BUSY_TIMEOUT_MS, driver_module
from ops.adapters.log_admin.verify import Progress, verify_log

_PART = ".part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did.

    Attributes:
        head: Where the log stands now.
        kept: The database that was there before, if one was.
    """

    head: LogHead
    kept: Path | None


def back_up(url: str, target: Path, *, progress: Progress | None = None) -> LogHead:
    """Copy the log to a new file while others write, and verify the copy.

    Returns:
        The head of the copy.

    Raises:
        LogUnavailable: The log is no SQLite file, the target exists, or one cannot be read or
            written.
        CorruptLog: The log does not verify; there is no copy then.
    """
    source = _file(url)
    if target.exists():
        msg = f"{target} exists already"
        raise LogUnavailable(msg)
    part = target.with_name(target.name + _PART)
    try:
        _create_empty(part)
        _vacuum_into(source, part)
        _sync(part)
        head = verify_copy(part, progress=progress)
        part.rename(target)
        sync_directory(target.parent)
    except (OSError, driver_module().Error) as error:
        part.unlink(missing_ok=True)
        msg = f"the log cannot be copied to {target}: {error}"
        raise LogUnavailable(msg) from error
    except CorruptLog:
        part.unlink(missing_ok=True)
        raise
    return head


def restore(
    url: str,
    copy: Path,
    *,
    kept_as: str,
    signed_hashes: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Put a copy in the place of the log; no service may run, which the caller sees to.

    Args:
        url: Of the log.
        copy: From ``back_up``; it stays as it is.
        kept_as: Suffix under which the present database is kept.
        signed_hashes: By position, from signed checkpoints; those that the copy reaches must fit.
        progress: Told while the copy is verified.

    Raises:
        LogUnavailable: The log is no SQLite file, the copy was made by a newer version, or a file
            cannot be read or written.
        CorruptLog: The copy does not verify, or is of another log.
    """
    file = _file(url)
    if not copy.is_file():
        msg = f"there is no copy at {copy}"
        raise LogUnavailable(msg)
    fresh = file.with_name(file.name + _PART)
    kept = file.with_name(f"{file.name}.{kept_as}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _create_empty(fresh)
        # By the database, not by bytes: a copy that was opened since may have a log of its own.
        _vacuum_into(copy, fresh)
        _sync(fresh)
        head = verify_copy(fresh, signed_hashes=signed_hashes, progress=progress)
        had_one = file.exists()
        if had_one:
            _set_aside(file, kept)
        fresh.replace(file)
        sync_directory(file.parent)
    except (OSError, driver_module().Error) as error:
        fresh.unlink(missing_ok=True)
        msg = f"the copy {copy} cannot be put back: {error}"
        raise LogUnavailable(msg) from error
    except CorruptLog:
        fresh.unlink(missing_ok=True)
        raise
    return Restored(head=head, kept=kept if had_one else None)


def verify_copy(
    path: Path, *, signed_hashes: dict[int, str] | None = None, progress: Progress | None = None
) -> LogHead:
    """Check a copy: the database's own structure, then the chain.

    Args:
        path: The copy.
        signed_hashes: By position, from signed checkpoints; positions beyond the copy are ignored.
        progress: Told while the chain is walked.

    Raises:
        CorruptLog: It does not verify.
        LogUnavailable: It is no log.
    """
    with closing(_connect(path)) as connection:
        ((found,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise CorruptLog(1, f"the database is damaged: {found}")
    url = f"sqlite:///{path.absolute()}"
    if current(url) is None:
        msg = f"{path} holds no event log"
        raise LogUnavailable(msg)
    engine = reader_engine(url)
    try:
        last = LogReader(engine).head().position
        reached = {at: hash_ for at, hash_ in (signed_hashes or {}).items() if at <= last}
        return verify_log(engine, signed_hashes=reached, progress=progress)
    finally:
        engine.dispose()


def _set_aside(file: Path, kept: Path) -> None:
    """Give the present database a second name, with all that its write-ahead log holds."""
    wal = file.with_name(file.name + "-wal")
    try:
        with closing(_connect(file, write=True)) as connection:
            # A log left beside the file would be taken for one of the new file's.
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    except driver_module().Error:
        # It is damaged, which may be why a copy is put back; keep the log as it is beside it.
        if wal.exists():
            shutil.copy(wal, kept.with_name(kept.name + "-wal"))
    os.link(file, kept)
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _file(url: str) -> Path:
    file = database_file(url)
    if file is None:
        msg = (
            "only a log in a SQLite file is copied here; for PostgreSQL use pg_dump and pg_restore"
        )
        raise LogUnavailable(msg)
    return file


def _create_empty(path: Path) -> None:
    """Make the file before the database does, so that it is nobody else's to read."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _vacuum_into(source: Path, target: Path) -> None:
    with closing(_connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),)).fetchall()


def _connect(path: Path, *, write: bool = False) -> Any:  # noqa: ANN401 - of the driver in use
    mode = "rw" if write else "ro"
    # Quoted, as the name is part of an address.
    connection = driver_module().connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None
    )
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").fetchall()
    return connection


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
