"""The table of agents: folded from events, and read as ``domain.agent.views.AgentViews``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, insert, select, update
from sqlmodel import select as rows

from domain.agent.views import TURNS_KEPT, AgentPage, AgentView, agent_of, project_agent, turn_of
from domain.job.state import Job
from domain.log.record import RecordedEvent
from domain.values import AgentId, Owner
from ops.adapters.event_log.database import reading, reading_rows
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.projections.jobs import job_of
from ops.adapters.event_log.row_codec import record_of, record_text, storable
from ops.adapters.event_log.tables import AGENTS, JOBS, NEXT_AGENTS, AgentRow

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


#: Upper limit of the rows of one page.
PAGE_ROWS_MAX = 1000
_TURNS = HotStatement(
    select(JOBS.c.record)
    .where(JOBS.c.agent == bindparam("agent"))
    .order_by(JOBS.c.accepted_position.desc())
    .limit(TURNS_KEPT)
)


class SqlAgentViews:
    """Queries the agents projection.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, agent: AgentId) -> AgentView | None:
        """See ``AgentViews.get``."""
        with reading(self._engine) as connection:
            view = read_agent(connection, AGENTS, agent)
            return None if view is None else _with_turns(connection, view)

    def page(
        self,
        *,
        limit: int,
        before: AgentId | None = None,
        is_registered: bool = False,
        owner: Owner | None = None,
    ) -> AgentPage:
        """See ``AgentViews.page``."""
        rows_max = max(1, min(limit, PAGE_ROWS_MAX))
        order = AGENTS.c.created_position if is_registered else AGENTS.c.position
        whose = [] if owner is None else [AGENTS.c.owner == owner]
        query = rows(AgentRow).where(order > 0, *whose)
        if before is not None:
            last = select(order).where(AGENTS.c.id == storable(before), *whose)
            query = query.where(order < last.scalar_subquery())
        with reading_rows(self._engine) as session:
            found = session.scalars(query.order_by(order.desc()).limit(rows_max + 1))
            views = tuple(record_of(AgentView, row.record) for row in found)
        return AgentPage(agents=views[:rows_max], has_more=len(views) > rows_max)

    def turns(self, agents: Iterable[AgentView]) -> tuple[AgentView, ...]:
        """See ``AgentViews.turns``."""
        with reading(self._engine) as connection:
            return tuple(_with_turns(connection, view) for view in agents)


def _with_turns(connection: Connection, view: AgentView) -> AgentView:
    found = _TURNS.rows(connection, {"agent": view.id})
    return replace(view, turns=tuple(turn_of(job_of(row[0])) for row in reversed(found)))
