"""Folds events into a table of agents, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, select, update

from domain.agent.views import AgentView, agent_of, project_agent
from domain.job.state import Job
from domain.log.record import RecordedEvent
from domain.values import AgentId
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import record_of, record_text, storable
from ops.adapters.event_log.tables import AGENTS, NEXT_AGENTS

_TABLES = (AGENTS, NEXT_AGENTS)

_ROW = {
    table.name: HotStatement(select(table.c.record).where(table.c.id == bindparam("agent")))
    for table in _TABLES
}
_INSERT = {table.name: HotStatement(insert(table).inline()) for table in _TABLES}
_UPDATE = {
    table.name: HotStatement(
        update(table).where(table.c.id == bindparam("agent")),
        columns=tuple(column.name for column in table.columns if column.name != "id"),
    )
    for table in _TABLES
}


class AgentFold:
    """The events of some agents, folded when they are written: no event of an agent is refused.

    Args:
        connection: In the transaction that appends or reads the events.
        table: The projection's table.
    """

    def __init__(self, connection: Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self._steps: dict[AgentId, list[tuple[RecordedEvent, Job | None]]] = {}

    def fold(self, events: Iterable[RecordedEvent], jobs: Iterable[Job | None]) -> None:
        """Take events, each with the row of its job after it."""
        for event, job in zip(events, jobs, strict=True):
            agent = agent_of(event, job)
            if agent is not None:
                self._steps.setdefault(agent, []).append((event, job))

    def write(self) -> None:
        """Fold the events into the rows of their agents."""
        for agent, steps in self._steps.items():
            stored = view = read_agent(self._connection, self._table, agent)
            for event, job in steps:
                view = project_agent(view, agent, event, job)
            if view is not None:
                self._write(view, is_new=stored is None)

    def _write(self, view: AgentView, *, is_new: bool) -> None:
        values, name = _values(view), self._table.name
        if is_new:
            _INSERT[name].run(self._connection, values)
        else:
            _UPDATE[name].run(self._connection, {"agent": values["id"], **values})


def read_agent(connection: Connection, table: Table, agent: AgentId) -> AgentView | None:
    """Return an agent of the projection in ``table``, without its turns, if it has the agent."""
    row = _ROW[table.name].row(connection, {"agent": storable(agent)})
    return None if row is None else record_of(AgentView, row[0])


def _values(view: AgentView) -> dict[str, Any]:
    return {
        "id": storable(view.id),
        "first_seen": view.first_seen,
        "position": view.position,
        "created_position": view.created_position,
        "owner": None if view.owner is None else storable(view.owner),
        "record": record_text(view),
    }
