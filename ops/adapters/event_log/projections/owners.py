"""The owners of files and batches: which API key made each stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, Table, insert

from domain.events.batch import BatchSubmitted, FileCreated
from domain.log.record import RecordedEvent
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.tables import NEXT_OWNED_STREAMS, OWNED_STREAMS

#: Types of the first events of streams whose owner has no other row.
_TYPES: Final = frozenset({FileCreated.__name__, BatchSubmitted.__name__})
_INSERT = {
    table.name: HotStatement(insert(table).inline())
    for table in (OWNED_STREAMS, NEXT_OWNED_STREAMS)
}


class OwnerFold:
    """The owners that some events name, written at the end.

    Args:
        connection: In the transaction that appends or reads the events.
        table: The projection's table.
    """

    def __init__(self, connection: Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self._owners: dict[str, str] = {}

    def fold(self, events: Iterable[RecordedEvent]) -> None:
        """Take events; streams without an owner get no row."""
        for event in events:
            if event.type in _TYPES and event.data.get("owner") is not None:
                self._owners[event.stream] = event.data["owner"]

    def write(self) -> None:
        """Write the rows."""
        rows = [{"stream": stream, "owner": owner} for stream, owner in self._owners.items()]
        if rows:
            _INSERT[self._table.name].run_many(self._connection, rows)
