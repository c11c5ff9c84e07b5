"""``domain.agent.listing.AgentViews`` on the tables of agents and jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection, Engine, bindparam, select
from sqlmodel import select as rows

from domain.agent.listing import AgentPage
from domain.agent.views import TURNS_KEPT, AgentView, turn_of
from domain.values import AgentId, Owner
from ops.adapters.event_log.database import reading, reading_rows
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.projections.agents import read_agent
from ops.adapters.event_log.projections.jobs import job_of
from ops.adapters.event_log.row_codec import record_of, storable
from ops.adapters.event_log.tables import AGENTS, JOBS, AgentRow

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
