"""The rows of agents: from the service, from the projection, or folded from the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ops.cli.client import whole_service
from ops.cli.log.as_of import folded
from ops.cli.log.projections import current_projections
from ops.clients.http_client import HttpClient, Refused, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from domain.agent.state import Agent
    from domain.agent.views import AgentViews

#: Most agents of a page of the service.
_PAGE_MAX: Final = 100


def read_lines(
    limit: int, as_of: str | None, data_dir: Path | None
) -> tuple[list[tuple[str, ...]], bool]:
    """Return the lines of the table of agents, and whether others follow; see ``agent_views``."""
    client = whole_service(data_dir) if as_of is None else None
    if client is not None:
        try:
            return _asked(client, limit)
        except (Refused, Unreachable, ValueError):
            pass  # the service ends just now: the log has the same
    with agent_views(as_of, data_dir) as views:
        page = views.page(limit=limit)
    return [_line_of_agent(agent) for agent in page.agents], page.has_more


@contextmanager
def agent_views(as_of: str | None, data_dir: Path | None) -> Iterator[AgentViews]:
    """Yield the agents of a log, now or at an earlier position.

    Args:
        as_of: A position, an age or an instant; ``None`` for now.
        data_dir: Directory of the log, if not that of the settings.
    """
    from domain.agent.views import fold_agents  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.event_log.projections.agents import SqlAgentViews  # noqa: PLC0415 - keeps --help fast

    if as_of is None:
        with current_projections(data_dir) as engine:
            if engine is not None:
                yield SqlAgentViews(engine)
                return
    yield folded(fold_agents, as_of, data_dir)  # the past, or projections that lack events


def _asked(client: HttpClient, limit: int) -> tuple[list[tuple[str, ...]], bool]:
    rows: list[dict[str, Any]] = []
    has_more, before = True, dict[str, object]()
    while has_more and len(rows) < limit:
        size = min(limit - len(rows), _PAGE_MAX)
        page = client.ask("GET", "/v1/agents", params={"seen": "true", "limit": size, **before})
        rows += page["data"]
        has_more, before = page["has_more"], {"before": page["next_before"]}
    lines = [
        _line(row["id"], row["activity"] | {"misses": sum(row["activity"]["misses"].values())})
        for row in rows
    ]
    return lines, has_more


def _line_of_agent(agent: Agent) -> tuple[str, ...]:
    figures = agent.figures
    return _line(agent.id, asdict(figures) | asdict(agent) | {"misses": figures.misses})


def _line(agent: str, seen: Mapping[str, Any]) -> tuple[str, ...]:
    cached, prompt = seen["cached_tokens"], seen["prompt_tokens"]
    is_open = f" ({seen['open_jobs']} open)" if seen["open_jobs"] else ""
    return (
        agent,
        f"{seen['jobs']}{is_open}",
        f"{seen['completion_tokens']:,}",
        f"{prompt:,}",
        f"{cached:,} ({cached / prompt if prompt else 0.0:.0%})",
        str(seen["hits"]),
        str(seen["misses"]),
        f"{seen['context_tokens']:,}",
        seen["last_seen"][:19],
    )
