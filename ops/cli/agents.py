"""``semantic agents``: agents, their turns and their contexts.

``ls`` asks the service where one runs, and else reads the log, as ``show`` does. ``fork`` and
``rm`` go through the service.
"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from domain.values import AgentId
from ops.cli.agent_rows import agent_views, read_lines
from ops.cli.cache_reasons import read_reasons, reason_text
from ops.cli.client import ask
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.log.as_of import AsOfOption
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import echo, print_pairs, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from domain.agent.state import Agent
    from domain.job.state import Job

#: Fields of an agent, and of its figures, that its JSON form has.
_SHOWN: Final = (
    "id",
    "first_seen",
    "last_seen",
    "jobs",
    "open_jobs",
    "known_tokens",
    "cache_event",
    "cache_event_at",
    "context_tokens",
    "disk_blocks",
    "last_job",
    "last_model",
    "position",
    "created_position",
    "parent",
    "inherited",
    "owner",
)
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


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Who asked, and what is known of them.")
    group.command("ls", epilog=EPILOG)(list_agents)
    group.command("show", epilog=EPILOG)(show)
    group.command("fork", epilog=EPILOG)(fork)
    group.command("rm", epilog=EPILOG)(remove)
    app.add_typer(group, name="agents", rich_help_panel="Look")


def list_agents(
    limit: Limit = 50, as_of: AsOfOption = None, json: Json = False, data_dir: DataDir = None
) -> None:
    """List agents, latest activity first; works with and without a service."""
    if json:  # with the latest turns of each agent, which only the log has
        with agent_views(as_of, data_dir) as views:
            page = views.page(limit=limit)
            data = [row_of(agent, views.latest_jobs(agent.id)) for agent in page.agents]
        listed = {"data": data, "has_more": page.has_more}
        echo(jsonlib.dumps(listed, indent=2, ensure_ascii=False))
        return
    rows, has_more = read_lines(limit, as_of, data_dir)
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
    name = AgentId(agent)
    with agent_views(as_of, data_dir) as views:
        found, jobs = views.get(name), views.latest_jobs(name)
    if found is None:
        fail(f"agent {agent} is not in the log", ExitCode.FAILED)
    reasons = read_reasons((job.id for job in jobs), data_dir)
    if json:
        row = row_of(found, jobs)
        for turn in row["turns"]:
            story = reasons.get(turn["job"])
            turn["missed"] = None if story is None else asdict(story)
        echo(jsonlib.dumps(row, indent=2, ensure_ascii=False))
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
                reason_text(reasons.get(job.id)),
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
    if json:
        echo(jsonlib.dumps(child, indent=2, ensure_ascii=False))
        return
    echo(f"{child['id']} goes on from turn {child['turns']} of {agent}")


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
        **{name: own[name] for name in _SHOWN},
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
