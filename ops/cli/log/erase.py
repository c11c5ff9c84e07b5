"""``semantic log erase``: remove texts from log, broker and cache."""

from __future__ import annotations

import json
import time
from typing import Annotated, Final

import typer

from domain.errors import LogUnavailable
from domain.usecases.jobs.cancel import JobCancellation
from domain.values import AgentId
from ops.adapters.erasing.erase import erase_agent
from ops.adapters.event_log.database import database_file
from ops.adapters.event_log.sql_event_log import open_log
from ops.adapters.redis.client import BrokerClient, Keys
from ops.adapters.redis.control import RedisControlSignals
from ops.adapters.redis.dramatiq_queue import DramatiqJobQueue
from ops.adapters.redis.items import RedisItemBacklog, RedisItemSink
from ops.cli.log.erasers import erasers
from ops.cli.log.log_options import errors_as_one_line, log_engine, read_settings
from ops.cli.log.retention import sweep
from ops.cli.options import DataDir
from ops.cli.output import echo
from ops.clock import RandomIds, SystemClock
from ops.settings import Settings
from ops.supervisor.startup_banner import without_password

#: How long to wait until the workers have ended cancelled jobs, in seconds.
_ENDS_MAX_S: Final = 10.0
_POLL_S: Final = 0.1


def add_to(log: typer.Typer) -> None:
    """Add the command to the group."""
    log.command("erase")(erase)


def erase(
    agent: Annotated[
        str | None, typer.Option("--agent", help="Erase the prompts and answers of this agent.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print how much is stored, the rules and what would go; erase nothing.",
        ),
    ] = False,
    text_days: Annotated[
        float | None, typer.Option("--text-days", min=0, help="In place of retention.text_days.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Erase texts for good: what was deleted and what the rules overtake, or those of an agent.

    Events stay, and verify. A service may run, and erases what is due by itself; the memory of its
    processes may hold the texts of an agent until it is used again.
    """
    settings = read_settings(data_dir)
    if agent is None:
        sweep(settings, text_days, dry_run=dry_run, as_json=as_json)
        return
    if dry_run or text_days is not None:
        raise typer.BadParameter("--dry-run and --text-days are not for one agent")
    _erase_agent(settings, agent, asks=not yes, as_json=as_json)


def _erase_agent(settings: Settings, agent: str, *, asks: bool, as_json: bool) -> None:
    if asks:
        typer.confirm(f"Erase every text of {agent}, and cancel its open jobs?", abort=True)
    with errors_as_one_line(), erasers(settings) as beside:
        with log_engine(settings):
            pass  # there is one
        if beside.client is not None and beside.is_served:
            _cancel_open_jobs(settings, beside.client, AgentId(agent))
        erased = erase_agent(
            settings.log_url,
            AgentId(agent),
            clock=SystemClock(),
            ids=RandomIds(),
            is_served=beside.is_served,
        )
        try:
            beside.items(erased.jobs)
            blocks = beside.blocks(erased.blocks)
        except OSError as error:
            msg = f"not all is erased, repeat this: {error}"
            raise LogUnavailable(msg) from error
    event = erased.event
    report = {
        "agent": agent,
        "jobs": event.jobs,
        "payloads": event.payloads,
        "payload_bytes": event.payload_bytes,
        "shared": event.shared,
        "blocks": blocks,
        "redis": settings.redis.url and without_password(settings.redis.url),
    }
    if as_json:
        echo(json.dumps(report))
        return
    echo(
        f"{agent} is forgotten: {event.payloads:,} texts ({event.payload_bytes:,} bytes) of "
        f"{event.jobs:,} jobs, {blocks:,} blocks of context"
    )
    if event.shared:
        echo(f"{event.shared:,} texts stay: jobs of others have the very same ones")
    if report["redis"]:
        echo(
            f"the Redis at {report['redis']} has deleted its items; its append-only file, snapshots"
            " and replicas may hold them until it writes these anew (BGREWRITEAOF, BGSAVE)"
        )
    echo("backups made before still hold the texts")
    if database_file(settings.log_url) is None:
        echo("so do the server's own log, replicas and unvacuumed pages of PostgreSQL")


def _cancel_open_jobs(settings: Settings, client: BrokerClient, agent: AgentId) -> None:
    """Cancel the open jobs of an agent, and wait until their worker has ended them."""
    keys, ids = Keys(settings.redis.prefix), RandomIds()
    with open_log(settings.log_url, clock=SystemClock()) as log:
        cancellation = JobCancellation(
            log=log,
            payloads=log,
            queue=DramatiqJobQueue(client, keys),
            sink=RedisItemSink(client, keys),
            backlog=RedisItemBacklog(client, keys),
            signals=RedisControlSignals(client, keys),
            ids=ids,
        )
        give_up_at = time.monotonic() + _ENDS_MAX_S
        while jobs := [view.id for view in log.views.unfinished() if view.submitted.agent == agent]:
            for job in jobs:
                cancellation.cancel(job, reason="operator")
            if time.monotonic() >= give_up_at:
                return  # the erasing ends what is left in the log
            time.sleep(_POLL_S)
