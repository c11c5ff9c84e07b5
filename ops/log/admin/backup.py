"""Copies the log's database while it is written to, and restores it from a copy.

A copy is the snapshot of one transaction (``VACUUM INTO``): complete, without a write-ahead log and
without deleted rows. In both directions the new file is complete and verified before it is renamed,
so a killed process leaves the old state or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from domain.errors import CorruptLog, LogUnavailable
from domain.log.record import LogHead
from ops.data_dir.permissions import make_directory, sync_directory, sync_file
from ops.log.admin.verify import Watchers, verify_whole_log
from ops.log.database import database_file, disposed, reader_engine, unavailable
from ops.log.migrate import refuse_newer_program
from ops.log.projections.rebuild import Progress
from ops.log.reader import LogReader
from ops.log.sqlite_driver import BUSY_TIMEOUT_MS, driver_module

_PART = ".part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore.

    Attributes:
        kept: Path of the previous database; ``None`` if there was none.
    """

    head: LogHead
    kept: Path | None


def back_up(url: str, target: Path, *, progress: Progress | None = None) -> LogHead:
    """Copy the log to a new file, safe while a service writes, and verify the copy.

    Returns:
        The head of the copy.

    Raises:
        LogUnavailable: The log is not in a SQLite file, the target exists, or a file cannot be
            read or written.
        CorruptLog: The log does not verify; no copy is left.
    """
    source = _file(url)
    if target.exists():
        raise LogUnavailable(f"{target} exists already")
    with _draft(target, f"the log cannot be copied to {target}") as part:
        _vacuum_into(source, part)
        sync_file(part)
        head = verify_copy(part, archives_of=url, progress=progress)
        part.rename(target)
        sync_directory(target.parent)
    return head


def restore(
    url: str,
    copy: Path,
    *,
    kept_as: str,
    signed_hashes: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Replace the log with a copy; the caller makes sure that no service runs.

    Args:
        copy: From ``back_up``; it is not changed.
        kept_as: Suffix for the name of the replaced database.
        signed_hashes: By position, from signed checkpoints; those that the copy reaches must fit.

    Raises:
        LogUnavailable: The log is not in a SQLite file, a newer version made the copy, or a file
            cannot be read or written.
        CorruptLog: The copy does not verify, or is of another log.
    """
    file = _file(url)
    if not copy.is_file():
        raise LogUnavailable(f"there is no copy at {copy}")
    kept = file.with_name(f"{file.name}.{kept_as}")
    failure = f"the copy {copy} cannot be put back"
    with unavailable(failure, OSError):
        make_directory(file.parent)
    with _draft(file, failure) as fresh:
        # By SQLite, not byte by byte: a copy that was opened may have a write-ahead log.
        _vacuum_into(copy, fresh)
        sync_file(fresh)
        head = verify_copy(fresh, archives_of=url, signed_hashes=signed_hashes, progress=progress)
        had_one = file.exists()
        if had_one:
            _set_aside(file, kept)
        fresh.replace(file)
        sync_directory(file.parent)
    return Restored(head=head, kept=kept if had_one else None)


def verify_copy(
    path: Path,
    *,
    archives_of: str | None = None,
    signed_hashes: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> LogHead:
    """Verify all that a copy holds; see ``verify_whole_log``.

    Args:
        archives_of: URL of the log beside which the archives lie, if not that of the copy.
        signed_hashes: By position, from signed checkpoints; positions beyond the copy are ignored.

    Raises:
        CorruptLog: The copy does not verify.
        LogNewer: A newer program has written to the copied log.
        LogUnavailable: The file has no event log.
    """
    try:
        with closing(_connect(path)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except driver_module().DatabaseError as error:
        raise CorruptLog(1, f"the database is damaged: {error}") from error
    url = f"sqlite:///{path.absolute()}"
    refuse_newer_program(url)
    with disposed(reader_engine(url)) as engine:
        return verify_restored(
            engine, url, archives_of=archives_of, signed_hashes=signed_hashes, progress=progress
        )


def verify_restored(
    engine: Engine,
    url: str,
    *,
    archives_of: str | None = None,
    signed_hashes: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> LogHead:
    """Verify a log that may end before its last signed checkpoint; see ``verify_whole_log``.

    Args:
        archives_of: URL of the log beside which the archives lie, if not that of the log.
        signed_hashes: By position, from signed checkpoints; positions beyond the log are ignored.

    Raises:
        CorruptLog: The log does not verify, or is not the one that was signed.
    """
    last = LogReader(engine).head().position
    reached = {at: hash_ for at, hash_ in (signed_hashes or {}).items() if at <= last}
    return verify_whole_log(
        engine,
        url,
        archives_of=archives_of,
        signed_hashes=reached,
        watchers=Watchers(chain=progress),
    ).head


def _set_aside(file: Path, kept: Path) -> None:
    """Give the present database a second name, with the content of its write-ahead log.

    The names are durable before the new file takes the place of the old one. Otherwise a power cut
    could leave the new file beside the old write-ahead log, which SQLite would apply to it.

    Raises:
        LogUnavailable: Another process reads the database.
    """
    wal, kept_wal = (path.with_name(path.name + "-wal") for path in (file, kept))
    if wal.exists():
        # SQLite deletes the write-ahead log of a file that it does not take for a database.
        os.link(wal, kept_wal)
        sync_file(kept_wal)
    try:
        with closing(_connect(file, write=True)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        kept_wal.unlink(missing_ok=True)
    except driver_module().DatabaseError as error:
        if "locked" in str(error):
            kept_wal.unlink(missing_ok=True)
            raise LogUnavailable("another process reads the log; end it and repeat this") from error
        # A damaged database may be the reason for the restore; its write-ahead log is kept.
    os.link(file, kept)
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    sync_directory(file.parent)


def _file(url: str) -> Path:
    file = database_file(url)
    if file is None:
        msg = (
            "only a log in a SQLite file is copied here; for PostgreSQL use pg_dump and pg_restore"
        )
        raise LogUnavailable(msg)
    return file


@contextmanager
def _draft(final: Path, failure: str) -> Iterator[Path]:
    """Yield an empty file that the block fills, verifies and renames; it goes if the block fails.

    Raises:
        LogUnavailable: A file cannot be read or written.
    """
    part = final.with_name(final.name + _PART)
    try:
        with unavailable(failure, OSError, driver_module().Error):
            # Before SQLite creates it, readable by the owner only.
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield part
    except (CorruptLog, LogUnavailable):
        part.unlink(missing_ok=True)
        raise


def _vacuum_into(source: Path, target: Path) -> None:
    with closing(_connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),)).fetchall()


def _connect(path: Path, *, write: bool = False) -> Any:  # noqa: ANN401 - of the driver in use
    mode = "rw" if write else "ro"
    # As a URI, which quotes the path.
    connection = driver_module().connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None
    )
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").fetchall()
    return connection
