"""The table of agents: folded from events, and read as ``domain.agent.views.AgentViews``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select

from domain.agent.state import Agent, agent_of, evolve
from domain.agent.views import LATEST_JOBS_MAX, AgentPage
from domain.job.state import Job
from domain.log.record import RecordedEvent
from domain.values import AgentId, Owner
from ops.log.database import SqlViews, reading
from ops.log.hot_statements import HotStatement, RecordTable
from ops.log.projections.jobs import job_of
from ops.log.row_codec import record_of, record_text, storable
from ops.log.tables import AGENTS, JOBS


class AgentFold:
    """The events of some agents, folded when they are written: no event of an agent is refused."""

    def __init__(self, connection: Connection, rows: RecordTable) -> None:
        self._connection = connection
        self._rows = rows
        self._steps: dict[AgentId, list[tuple[RecordedEvent, Job | None]]] = {}

    def fold(self, events: Iterable[RecordedEvent], jobs: Iterable[Job | None]) -> None:
        """Take events, each with the row of its job after it."""
        for event, job in zip(events, jobs, strict=True):
            agent = agent_of(event, job)
            if agent is not None:
                self._steps.setdefault(agent, []).append((event, job))

    def write(self) -> None:
        """Fold the events into the rows of their agents."""
        fresh: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for name, steps in self._steps.items():
            record = self._rows.read(self._connection, storable(name))
            agent = Agent(id=name) if record is None else record_of(Agent, record)
            for event, job in steps:
                agent = evolve(agent, event, job)
            (fresh if record is None else changed).append(_values(agent))
        self._rows.write(self._connection, fresh=fresh, changed=changed)


def agent_rows(table: Table) -> RecordTable:
    """Return the rows of a table of agents."""
    return RecordTable(table, fixed={"first_seen"})


def _values(agent: Agent) -> dict[str, Any]:
    return {
        "id": storable(agent.id),
        "first_seen": agent.first_seen,
        "position": agent.position,
        "created_position": agent.created_position,
        "owner": None if agent.owner is None else storable(agent.owner),
        "record": record_text(agent),
    }


_ROWS = agent_rows(AGENTS)
#: Upper limit of the rows of one page.
PAGE_ROWS_MAX = 1000
_LATEST_JOBS = HotStatement(
    select(JOBS.c.record)
    .where(JOBS.c.agent == bindparam("agent"))
    .order_by(JOBS.c.accepted_position.desc())
    .limit(LATEST_JOBS_MAX)
)


class SqlAgentViews(SqlViews):
    """Queries the agents projection."""

    def get(self, agent: AgentId) -> Agent | None:
        """See ``AgentViews.get``."""
        with reading(self._engine) as connection:
            record = _ROWS.read(connection, storable(agent))
        return None if record is None else record_of(Agent, record)

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
        found = self._all(query.order_by(order.desc()).limit(rows_max + 1))
        agents = tuple(record_of(Agent, record) for (record,) in found)
        return AgentPage(agents=agents[:rows_max], has_more=len(agents) > rows_max)

    def latest_jobs(self, agent: AgentId) -> tuple[Job, ...]:
        """See ``AgentViews.latest_jobs``."""
        found = self._found(_LATEST_JOBS, agent=storable(agent))
        return tuple(job_of(record) for (record,) in reversed(found))
