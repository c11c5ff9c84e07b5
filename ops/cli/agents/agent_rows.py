"""The rows of agents: from the projection, or folded from the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ops.cli.log.as_of import folded
from ops.cli.log.projections import current_projections

if TYPE_CHECKING:
    from pathlib import Path

    from domain.agent.listing import AgentPage, AgentViews
    from domain.agent.views import AgentView


def read_page(limit: int, as_of: str | None, data_dir: Path | None) -> AgentPage:
    """Return the agents that were seen last, with their turns.

    Args:
        limit: Most agents.
        as_of: A position, an age or an instant; ``None`` for now.
        data_dir: Directory of the log, if not that of the settings.
    """
    from domain.agent.listing import AgentPage  # noqa: PLC0415 - keeps --help fast

    with _projection(as_of, data_dir) as views:
        if views is not None:
            page = views.page(limit=limit)
            return AgentPage(agents=views.turns(page.agents), has_more=page.has_more)
    found = _folded(as_of, data_dir)
    return AgentPage(agents=found[:limit], has_more=len(found) > limit)


def read_agent(agent: str, as_of: str | None, data_dir: Path | None) -> AgentView | None:
    """Return one agent with its turns, if the log names it; see ``read_page``."""
    from domain.values import AgentId  # noqa: PLC0415 - keeps --help fast

    with _projection(as_of, data_dir) as views:
        if views is not None:
            return views.get(AgentId(agent))
    return next((view for view in _folded(as_of, data_dir) if view.id == agent), None)


@contextmanager
def _projection(as_of: str | None, data_dir: Path | None) -> Iterator[AgentViews | None]:
    """Yield the projection; ``None`` if the past is wanted, or it does not hold every event."""
    from ops.adapters.event_log.projections.agent_views import SqlAgentViews  # noqa: PLC0415 - keeps --help fast

    if as_of is not None:
        yield None
        return
    with current_projections(data_dir) as engine:
        yield SqlAgentViews(engine) if engine is not None else None


def _folded(as_of: str | None, data_dir: Path | None) -> tuple[AgentView, ...]:
    from domain.agent.as_of import fold_agents  # noqa: PLC0415 - keeps --help fast

    return folded(fold_agents, as_of, data_dir)
