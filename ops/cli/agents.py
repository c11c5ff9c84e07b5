"""``semantic agents``: agents, their turns and their contexts.

``ls`` asks the service where one runs, and else reads the log, as ``show`` does. ``fork`` and
``rm`` go through the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from ops.cli.client import ask, whole_service
from ops.cli.log.as_of import AsOfOption, current_projections, folded, log_if_any
from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import echo, print_answer, print_json, print_pairs, print_table
from ops.clients.http_client import HttpClient, Refused, Unreachable
from ops.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from domain.agent.state import Agent
    from domain.agent.views import AgentViews
    from domain.audit.recent_ends import CacheDiagnosis
    from domain.job.state import Job
    from domain.values import JobId


#: Fields of an agent that its JSON form has not, and of its figures those that it has.
_HIDDEN: Final = frozenset({"version", "life", "profile", "parent_life", "base", "figures"})
_SHOWN_FIGURES: Final = (
    "hits",
    "ram_tokens",
    "disk_tokens",
    "misses_diverged",
    "misses_gone",
    "misses_model_changed",
    "missed_tokens",
)
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Most rows.")]
AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]


def list_agents(
    limit: Limit = 50, as_of: AsOfOption = None, json: Json = False, data_dir: DataDir = None
) -> None:
    """List agents, latest activity first; works with and without a service."""
    if json:  # with the latest turns of each agent, which only the log has
        with _agent_views(as_of, data_dir) as views:
            page = views.page(limit=limit)
            data = [row_of(agent, views.latest_jobs(agent.id)) for agent in page.agents]
        listed = {"data": data, "has_more": page.has_more}
        print_json(listed, ascii_only=False)
        return
    rows, has_more = _read_lines(limit, as_of, data_dir)
    print_table(
        ("agent", "jobs", "tokens", "prompt", "cached", "hits", "misses", "context", "last seen"),
        rows,
    )
    if has_more:
        echo("there are more: raise --limit", err=True)


def show(
    agent: AgentArgument, as_of: AsOfOption = None, json: Json = False, data_dir: DataDir = None
) -> None:
    """Show one agent with its latest turns; needs no service."""
    from domain.values import AgentId

    name = AgentId(agent)
    with _agent_views(as_of, data_dir) as views:
        found, jobs = views.get(name), views.latest_jobs(name)
    if found is None:
        fail(f"agent {agent} is not in the log", ExitCode.FAILED)
    reasons = _read_reasons((job.id for job in jobs), data_dir)
    if json:
        row = row_of(found, jobs)
        for turn in row["turns"]:
            story = reasons.get(turn["job"])
            turn["missed"] = None if story is None else asdict(story)
        print_json(row, ascii_only=False)
        return
    print_pairs([(name, value) for name, value in _pairs(found) if value])
    echo("")
    print_table(
        ("turn", "status", "prompt", "cached", "prefilled", "tokens", "accepted", "why no more"),
        [
            (
                job.id,
                job.status.value,
                f"{job.own_usage.prompt_tokens:,}",
                f"{job.own_usage.cached_tokens:,}",
                f"{job.own_usage.prompt_tokens - job.own_usage.cached_tokens:,}",
                f"{job.own_usage.completion_tokens:,}",
                job.created_at[:19],
                _reason_text(reasons.get(job.id)),
            )
            for job in jobs
        ],
    )


def fork(
    agent: AgentArgument,
    turn: Annotated[
        int | None, typer.Option("--turn", min=0, help="After this turn; else after the latest.")
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="Name of the new agent.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create an agent with the history of another one up to one of its turns."""
    wanted = {"from_turn": turn, "id": name}
    body = {key: value for key, value in wanted.items() if value is not None}
    child = ask("POST", f"{_path(agent)}/fork", data_dir, json=body)
    line = f"{child['id']} goes on from turn {child['turns']} of {agent}"
    print_answer(child, line, as_json=json)


def remove(
    agent: AgentArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Delete an agent that was created over HTTP; texts and blocks of its own are erased."""
    if not yes:
        typer.confirm(f"Delete {agent}, and cancel its open turn?", abort=True)
    ask("DELETE", _path(agent), data_dir)
    echo(
        f"{agent} is deleted; its texts are erased within a minute, except what a fork or another "
        "job needs"
    )


def row_of(agent: Agent, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the JSON form of an agent with its latest jobs."""
    own, figures = asdict(agent), asdict(agent.figures)
    return {
        **{name: value for name, value in own.items() if name not in _HIDDEN},
        **{name: figures[name] for name in _SHOWN_FIGURES},
        "misses": agent.figures.misses,
        "created_at": agent.created_at or None,
        "usage": asdict(agent.figures.usage),
        "turns": [_turn_row(job) for job in jobs],
    }


def _turn_row(job: Job) -> dict[str, Any]:
    usage = job.own_usage
    return {
        "job": job.id,
        "at": job.created_at,
        "status": job.status.value,
        "usage": asdict(usage),
        "prefilled_tokens": usage.prompt_tokens - usage.cached_tokens,
    }


def _path(agent: str) -> str:
    return f"/v1/agents/{quote(agent, safe='')}"


def _pairs(view: Agent) -> list[tuple[str, str]]:
    sums = view.figures
    latest = f"{view.cache_event} at {(view.cache_event_at or '')[:19]}" if view.cache_event else ""
    context = f"{view.context_tokens:,} tokens in {view.disk_blocks:,} blocks, as saved last"
    return [
        ("agent", view.id),
        ("first seen", view.first_seen[:19]),
        ("last seen", view.last_seen[:19]),
        ("jobs", f"{view.jobs:,} ({view.open_jobs:,} open)"),
        ("tokens", f"{sums.prompt_tokens:,} in, {sums.completion_tokens:,} out"),
        ("cached", f"{sums.cached_tokens:,} ({sums.cached_ratio:.0%})"),
        ("cache", f"{sums.hits:,} hits, {sums.misses:,} misses"),
        ("latest", latest),
        ("on disk", context if view.disk_blocks else ""),
    ]


#: Most agents of a page of the service.
_PAGE_MAX: Final = 100


def _read_lines(
    limit: int, as_of: str | None, data_dir: Path | None
) -> tuple[list[tuple[str, ...]], bool]:
    """Return the lines of the table of agents, and whether others follow; see ``_agent_views``."""
    client = whole_service(data_dir) if as_of is None else None
    if client is not None:
        try:
            return _asked(client, limit)
        except (Refused, Unreachable, ValueError):
            pass  # the service ends just now: the log has the same
    with _agent_views(as_of, data_dir) as views:
        page = views.page(limit=limit)
    return [_line_of_agent(agent) for agent in page.agents], page.has_more


@contextmanager
def _agent_views(as_of: str | None, data_dir: Path | None) -> Iterator[AgentViews]:
    """Yield the agents of a log, now or at an earlier position.

    Args:
        as_of: A position, an age or an instant; ``None`` for now.
        data_dir: Directory of the log, if not that of the settings.
    """
    from domain.agent.views import fold_agents
    from ops.log.projections.agents import SqlAgentViews

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


def _read_reasons(jobs: Iterable[JobId], data_dir: Path | None) -> dict[JobId, CacheDiagnosis]:
    """Return the cache miss of each job; jobs without one and archived jobs are left out."""
    from domain.audit.recent_ends import diagnose_cache
    from ops.log.projections.jobs import SqlJobViews
    from ops.log.reader import LogReader

    found: dict[JobId, CacheDiagnosis | None] = {}
    with log_if_any(settings_or_exit(overrides(data_dir=data_dir)).log_url) as engine:
        if engine is not None:
            log, views = LogReader(engine), SqlJobViews(engine)
            found = {job: diagnose_cache(job, views=views, log=log, payloads=log) for job in jobs}
    return {job: story for job, story in found.items() if story and story.divergence}


def _reason_text(story: CacheDiagnosis | None) -> str:
    """Return a cache miss as a short text."""
    if story is None or story.divergence is None:
        return ""
    parted = story.divergence
    return f"{parted.cause.value} at {parted.place} (token {story.cached_tokens:,})"


#: The commands of the group, by name.
COMMANDS: Final = {"ls": list_agents, "show": show, "fork": fork, "rm": remove}
