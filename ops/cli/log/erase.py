"""``semantic log erase`` and ``log sweep``: what is erased from log, broker and cache."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from domain.errors import LogUnavailable
from domain.job.cancel import JobCancellation
from domain.kv.plan import size_text
from domain.values import AgentId, JobId
from ops.blockstore.maintenance import erase_blocks
from ops.broker.address import is_private, resolve_broker_url
from ops.broker.client import BrokerClient, Keys, connect
from ops.broker.control import RedisControlSignals, RedisWorkerPulses
from ops.broker.dramatiq_queue import DramatiqJobQueue
from ops.broker.items import RedisItemBacklog, RedisItemEraser, RedisItemSink
from ops.broker.worker_requests import RedisBlockPlaces
from ops.cli.log.log_options import errors_as_one_line, log_engine, nothing_runs, read_settings
from ops.cli.options import DataDir
from ops.cli.output import echo
from ops.clock import RandomIds, SystemClock
from ops.data_dir.lock import DataDirLocked
from ops.data_dir.permissions import sync_directory
from ops.log.admin.stored import measure_stored
from ops.log.database import database_file
from ops.log.erase.erase import erase_agent
from ops.log.erase.sweep import SweepPlan, TextSweeper
from ops.log.sql_event_log import open_log
from ops.settings.settings import Settings
from ops.supervisor.serve_record import read_record
from ops.supervisor.startup_banner import without_password

#: How long to wait for the broker of a running service, in seconds.
BROKER_WAIT_S = 5.0
#: Data files of the private redis-server.
_BROKER_DATA = ("appendonlydir", "dump.rdb", "appendonly.aof")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasers:
    """Erases what the log's database does not hold.

    Attributes:
        blocks: Deletes blocks, and returns how many files were deleted.
        client: The broker; ``None`` where no service runs and the broker is private.
    """

    items: Callable[[Sequence[JobId]], None]
    blocks: Callable[[frozenset[str]], int]
    client: BrokerClient | None
    is_served: bool


@contextmanager
def erasers(settings: Settings) -> Iterator[Erasers]:
    """Connect to the service that runs, or keep one from starting.

    Raises:
        LogUnavailable: Parts of a service are still ending.
        QueueUnavailable: A service runs and its broker does not answer.
    """
    keys = Keys(settings.redis.prefix)
    with ExitStack() as stack:
        is_served = not _is_exclusive(settings, stack)
        if settings.redis.url is None and not is_served:
            yield Erasers(
                items=partial(_empty_broker, settings),
                blocks=partial(erase_blocks, places=None, root=settings.cache_dir),
                client=None,
                is_served=False,
            )
            return
        client = connect(resolve_broker_url(settings, wait_s=BROKER_WAIT_S))
        stack.callback(client.close)
        places = RedisBlockPlaces(client, keys, RedisWorkerPulses(client, keys))
        eraser = RedisItemEraser(client, keys, is_private=is_private(settings))
        yield Erasers(
            items=eraser.erase,
            blocks=partial(erase_blocks, places=places, root=settings.cache_dir),
            client=client,
            is_served=is_served,
        )


def _is_exclusive(settings: Settings, stack: ExitStack) -> bool:
    try:
        stack.enter_context(nothing_runs(settings))
    except DataDirLocked:
        return False  # a worker runs on its own
    except LogUnavailable:
        if read_record(settings.data_dir) is None:
            raise
        return False
    return True


def _empty_broker(settings: Settings, jobs: Sequence[JobId]) -> None:
    """Delete the files of a private broker that does not run: they keep even what was deleted.

    Its state is rebuilt from the log.

    Raises:
        LogUnavailable: A file cannot be deleted.
    """
    if not jobs:
        return
    try:
        for name in _BROKER_DATA:
            path = settings.broker_dir / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if settings.broker_dir.is_dir():
            sync_directory(settings.broker_dir)  # a power cut could bring the files back
    except OSError as error:
        raise LogUnavailable(f"not all is erased, repeat this: {error}") from error


def sweep(settings: Settings, text_days: float | None, *, dry_run: bool, as_json: bool) -> None:
    """Erase now what was deleted and what the rules overtake, or show what would go.

    Args:
        dry_run: Print how much is stored, the rules and what would go; erase nothing.
    """
    if dry_run:
        _show(settings, text_days, as_json=as_json)
        return
    with errors_as_one_line():
        with log_engine(settings):
            pass  # there is one
        with _sweeper(settings, text_days, erases=True) as sweeper:
            plan = sweeper.sweep()
    if as_json:
        echo(json.dumps({"dry_run": False} | _report(plan)))
    else:
        _print(plan, "erased")


def _show(settings: Settings, text_days: float | None, *, as_json: bool) -> None:
    with errors_as_one_line():
        with log_engine(settings):
            stored = asdict(measure_stored(settings.data_dir, settings.cache_dir, settings.log_url))
        with _sweeper(settings, text_days) as sweeper:
            plan = sweeper.plan()
    rules = settings.retention.model_dump()
    if as_json:
        shown = {"stored": stored, "rules": rules}
        echo(json.dumps({"dry_run": True} | _report(plan) | shown))
        return
    for name, size in stored.items():
        echo(f"{name:<16} {size_text(size):>15}")
    named = ", ".join(f"{name} {value:g}" for name, value in rules.items() if value is not None)
    echo(f"rules            {named or 'none: only deletions erase'}")
    _print(plan, "a sweep would erase")


@contextmanager
def _sweeper(
    settings: Settings, text_days: float | None, *, erases: bool = False
) -> Iterator[TextSweeper]:
    rules = settings.retention
    if text_days is not None:
        rules = rules.model_copy(update={"text_days": text_days})
    made = partial(TextSweeper, settings.log_url, rules, clock=SystemClock(), ids=RandomIds())
    if not erases:
        with closing(made()) as sweeper:
            yield sweeper
        return
    with (
        erasers(settings) as beside,
        closing(made(erase_items=beside.items, erase_blocks=beside.blocks)) as sweeper,
    ):
        yield sweeper
        sweeper.remove_traces(is_served=beside.is_served)


def _report(plan: SweepPlan) -> dict[str, Any]:
    return {
        "texts": len(plan.doomed.sizes),
        "text_bytes": sum(plan.doomed.sizes.values()),
        "kept_bytes": plan.doomed.kept_bytes,
        "jobs": len(plan.doomed.jobs),
        "blocks": len(plan.blocks),
        "archives": [archive.file for archive in plan.archives],
        "ended_before": plan.doomed.cut.ended_before,
    }


def _print(plan: SweepPlan, verb: str) -> None:
    report = _report(plan)
    echo(
        f"{verb}: {report['texts']:,} texts ({report['text_bytes']:,} bytes) of "
        f"{report['jobs']:,} jobs, {report['blocks']:,} blocks of context, "
        f"{len(report['archives']):,} archives"
    )


#: How long to wait until the workers have ended cancelled jobs, in seconds.
_ENDS_MAX_S: Final = 10.0
_POLL_S: Final = 0.1


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
            raise LogUnavailable(f"not all is erased, repeat this: {error}") from error
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
