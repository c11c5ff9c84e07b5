"""The table of agents: folded from events, and read as ``domain.agent.views.AgentViews``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, insert, select, update

from domain.agent.state import Agent, agent_of, evolve
from domain.agent.views import LATEST_JOBS_MAX, AgentPage
from domain.job.state import Job
from domain.log.record import RecordedEvent
from domain.values import AgentId, Owner
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.projections.jobs import job_of
from ops.adapters.event_log.row_codec import record_of, record_text, storable
from ops.adapters.event_log.tables import AGENTS, JOBS, NEXT_AGENTS

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
        for name, steps in self._steps.items():
            stored = read_agent(self._connection, self._table, name)
            agent = stored or Agent(id=name)
            for event, job in steps:
                agent = evolve(agent, event, job)
            values, table = _values(agent), self._table.name
            if stored is None:
                _INSERT[table].run(self._connection, values)
            else:
                _UPDATE[table].run(self._connection, {"agent": values["id"], **values})


def read_agent(connection: Connection, table: Table, agent: AgentId) -> Agent | None:
    """Return an agent of the projection in ``table``, if it has the agent."""
    row = _ROW[table.name].row(connection, {"agent": storable(agent)})
    return None if row is None else record_of(Agent, row[0])


def _values(agent: Agent) -> dict[str, Any]:
    return {
        "id": storable(agent.id),
        "first_seen": agent.first_seen,
        "position": agent.position,
        "created_position": agent.created_position,
        "owner": None if agent.owner is None else storable(agent.owner),
        "record": record_text(agent),
    }


#: Upper limit of the rows of one page.
PAGE_ROWS_MAX = 1000
_LATEST_JOBS = HotStatement(
    select(JOBS.c.record)
    .where(JOBS.c.agent == bindparam("agent"))
    .order_by(JOBS.c.accepted_position.desc())
    .limit(LATEST_JOBS_MAX)
)


class SqlAgentViews:
    """Queries the agents projection.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, agent: AgentId) -> Agent | None:
        """See ``AgentViews.get``."""
        with reading(self._engine) as connection:
            return read_agent(connection, AGENTS, agent)

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
        query = select(AGENTS.c.record).where(order > 0, *whose)
        if before is not None:
            last = select(order).where(AGENTS.c.id == storable(before), *whose)
            query = query.where(order < last.scalar_subquery())
        with reading(self._engine) as connection:
            found = connection.scalars(query.order_by(order.desc()).limit(rows_max + 1))
            agents = tuple(record_of(Agent, record) for record in found)
        return AgentPage(agents=agents[:rows_max], has_more=len(agents) > rows_max)

    def latest_jobs(self, agent: AgentId) -> tuple[Job, ...]:
        """See ``AgentViews.latest_jobs``."""
        with reading(self._engine) as connection:
            found = _LATEST_JOBS.rows(connection, {"agent": storable(agent)})
        return tuple(job_of(record) for (record,) in reversed(found))
