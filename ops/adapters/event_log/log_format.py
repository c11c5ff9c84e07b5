"""The least reader version that a log needs, in a row beside its events.

The transaction that appends the first event which older programs cannot read raises the version.
Every start, and every transaction of a running program, compares it with the program's own.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, bindparam, inspect, select, update

from domain.log.reader_version import refuse_newer
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.tables import LOG_FORMAT

READER_MIN: Final = "reader_min"
_READ = HotStatement(select(LOG_FORMAT.c.version).where(LOG_FORMAT.c.name == bindparam("row")))
_RAISE = HotStatement(
    update(LOG_FORMAT).where(LOG_FORMAT.c.name == bindparam("row")), columns=("version",)
)


def read_reader_min(connection: Connection) -> int:
    """Return the least reader version that a log of the present schema needs."""
    row = _READ.row(connection, {"row": READER_MIN})
    return 1 if row is None else int(row[0])


def raise_reader_min(connection: Connection, version: int) -> None:
    """Record that the log needs a newer reader from now on; the caller commits."""
    _RAISE.run(connection, {"row": READER_MIN, "version": version})


def refuse_newer_log(connection: Connection) -> None:
    """Refuse a log of any schema that needs a newer reader.

    Raises:
        LogNewer: This program is older than the one that wrote to the log.
    """
    if inspect(connection).has_table(LOG_FORMAT.name):
        refuse_newer(read_reader_min(connection))
