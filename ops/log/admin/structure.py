"""Verifies the database below the events: pages, indexes, tables, triggers and small rows.

A page that no table uses has no content that a reader could see, so it is not checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, select, text

from domain.errors import CorruptLog, LogUnavailable
from domain.log.record import reader_needed
from ops.log.archives import ArchiveReport
from ops.log.database import database_file, snapshot
from ops.log.migrate import READER_MIN, current, made_tables, read_reader_min
from ops.log.row_codec import read_head, row_digest
from ops.log.sqlite_driver import read_schema
from ops.log.tables import CHECKPOINTS, EVENTS, JOBS, LOG_FORMAT, NEXT_JOBS, WEBHOOKS

#: Bytes of a SQLite file's header whose values never change, and the values.
_MAGIC: Final = (0, b"SQLite format 3\0")
_PAYLOAD_FRACTIONS: Final = (20, bytes([0, 64, 32, 32]))
#: Schema format 4, no suggested cache size, no auto-vacuum, UTF-8, no user version, no incremental
#: vacuum, no application id, and 20 reserved bytes.
_SETTINGS: Final = (44, bytes([0, 0, 0, 4, *[0] * 8, 0, 0, 0, 1, *[0] * 32]))
_HEADER_BYTES: Final = 100
#: Rows read at a time.
_PAGE_ROWS: Final = 1000
#: Journal modes of the header: rollback journal and write-ahead log, for readers and for writers.
_JOURNAL_AT: Final = 18
_JOURNAL_MODES: Final = (b"\1\1", b"\2\2")
_POSTGRES_TRIGGERS: Final = {"events_no_change", "events_no_gap"}


def verify_structure(engine: Engine, url: str, archives: ArchiveReport) -> None:
    """Verify that the database can be read as a whole and is as the migrations made it.

    Raises:
        CorruptLog: The database is damaged or its tables were changed.
        LogUnavailable: The database cannot be read, or has no event log.
    """
    file = database_file(url)
    if file is not None:
        _verify_header(file)
    revision = current(url)
    if revision is None:
        raise LogUnavailable(f"{file or 'the database'} holds no event log")
    with snapshot(engine) as connection:
        if file is None:
            _verify_triggers(connection)
        else:
            _verify_sqlite(connection, revision)
        _verify_reader_min(connection, archives)
        _verify_digests(connection)


def _verify_header(file: Path) -> None:
    with file.open("rb") as opened:
        header = opened.read(_HEADER_BYTES)
    if not header:
        return  # all of the new file is in its write-ahead log
    for at, expected in (_MAGIC, _PAYLOAD_FRACTIONS, _SETTINGS):
        if header[at : at + len(expected)] != expected:
            raise _damaged("its header was changed")
    if header[_JOURNAL_AT : _JOURNAL_AT + 2] not in _JOURNAL_MODES:
        raise _damaged("its header was changed")


def _verify_sqlite(connection: Connection, revision: str) -> None:
    found = connection.execute(text("PRAGMA integrity_check(1)")).scalar_one()
    if found != "ok":
        raise _damaged(str(found))
    wanted, present = made_tables(revision), read_schema(connection)
    if wanted != present:
        names = sorted({entry.name for entry in wanted ^ present})
        raise _damaged(f"its tables are not as they were made: {', '.join(names)}")
    is_numbered = connection.execute(
        text(
            "SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'events')"
            " IS (SELECT max(position) FROM events)"
            " AND NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name <> 'events')"
        )
    ).scalar_one()
    if not is_numbered:
        raise _damaged("the number of the last event is another")
    revisions = connection.execute(text("SELECT count(*) FROM alembic_version")).scalar_one()
    if revisions != 1:
        raise _damaged("its schema has several versions")


def _verify_triggers(connection: Connection) -> None:
    found = connection.execute(
        text(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass('events')"
            " AND NOT tgisinternal AND tgenabled = 'O'"
        )
    )
    if missing := _POSTGRES_TRIGGERS - set(found.scalars()):
        raise _damaged(f"its triggers are missing: {', '.join(sorted(missing))}")


def _verify_reader_min(connection: Connection, archives: ArchiveReport) -> None:
    """Verify that the least reader version is the one that the events need."""
    names = connection.scalars(select(LOG_FORMAT.c.name)).all()
    stored = read_reader_min(connection)
    kinds = connection.execute(
        select(EVENTS.c.type, EVENTS.c.schema_version).group_by(
            EVENTS.c.type, EVENTS.c.schema_version
        )
    )
    readable = (reader_needed(name, version) for name, version in kinds)
    needed = max([archives.reader_needed, *readable])
    # Events of an archive that is not there may have raised it.
    is_fitting = stored == needed if archives.is_whole else stored >= needed
    if list(names) != [READER_MIN] or not is_fitting:
        position = read_head(connection).position
        raise CorruptLog(position, f"the log needs reader {needed} and names {stored}")


def _verify_digests(connection: Connection) -> None:
    """Verify the rows that no event can verify, by their own digests."""
    last = 0
    webhooks = select(WEBHOOKS).execution_options(yield_per=_PAGE_ROWS)
    with connection.execute(webhooks) as rows:
        for row in rows.mappings():
            last = max(last, row["position"])
            if row["digest"] != row_digest(dict(row)):
                reason = f"the webhook {row['id']} is not as it was written"
                raise CorruptLog(row["position"], reason)
    for row in connection.execute(select(CHECKPOINTS)).mappings():
        is_fold = row["name"] in {JOBS.name, NEXT_JOBS.name}
        if row["digest"] != (None if is_fold else row_digest(dict(row))):
            raise _damaged(f"the checkpoint {row['name']} is not as it was written")
        last = 0 if not is_fold and row["position"] >= last else last
    if last:
        raise CorruptLog(last, "webhooks of this event were made, and their checkpoint is behind")


def _damaged(reason: str) -> CorruptLog:
    return CorruptLog(1, f"the database is damaged: {reason}")
