"""``semantic events erase``: remove an agent's texts from log, broker and cache."""

from __future__ import annotations

import json
import shutil
from typing import Annotated

import typer

from domain.errors import LogUnavailable
from domain.kv.hashing import BlockHash
from domain.values import AgentId
from ops.adapters.data_dir.sync import sync_directory
from ops.adapters.log_admin.erase import Erased, erase_agent
from ops.adapters.redis.client import Keys, broker_errors, connect
from ops.blockstore import maintenance
from ops.cli.log.exclusive import nothing_runs
from ops.cli.log.log_options import errors_as_one_line, log_engine, read_settings
from ops.cli.options import DataDir
from ops.cli.output import echo
from ops.clock import RandomIds, SystemClock
from ops.settings import Settings
from ops.supervisor.startup_banner import without_password

#: Keys per DEL command.
_KEYS_AT_ONCE = 500
#: Data files of the private redis-server.
_BROKER_DATA = ("appendonlydir", "dump.rdb", "appendonly.aof")


def add_to(events: typer.Typer) -> None:
    """Add the command to the group."""
    events.command("erase")(erase)


def erase(
    agent: Annotated[str, typer.Option("--agent", help="Whose texts.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Erase the prompts and answers of an agent for good; its events stay, and verify.

    The service must be stopped: its memory may hold the texts.
    """
    settings = read_settings(data_dir)
    if not yes:
        typer.confirm(f"Erase every text of {agent}, and cancel its open jobs?", abort=True)
    with errors_as_one_line(), nothing_runs(settings):
        with log_engine(settings):
            pass  # there is one
        erased = erase_agent(settings.log_url, AgentId(agent), clock=SystemClock(), ids=RandomIds())
        try:
            _erase_items(settings, erased)
            blocks = _erase_blocks(settings, erased)
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


def _erase_items(settings: Settings, erased: Erased) -> None:
    """Delete the stream items that the broker keeps.

    A private broker that does not run is emptied, since its files keep even what was
    deleted; its state is rebuilt from the log.

    Raises:
        QueueUnavailable: An external broker cannot be reached.
    """
    if settings.redis.url is None:
        for name in _BROKER_DATA:
            path = settings.broker_dir / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if settings.broker_dir.is_dir():
            sync_directory(settings.broker_dir)  # a power cut could bring the files back
        return
    keys = Keys(settings.redis.prefix)
    client = connect(settings.redis.url)
    names = [keys.items(job) for job in erased.jobs]
    try:
        with broker_errors():
            for first in range(0, len(names), _KEYS_AT_ONCE):
                client.delete(*names[first : first + _KEYS_AT_ONCE])
    finally:
        client.close()


def _erase_blocks(settings: Settings, erased: Erased) -> int:
    """Delete the blocks that only this agent's contexts use; return their number.

    What builds on them goes too: checkpoints, and blocks of jobs that never completed.
    """
    if not erased.blocks or not settings.cache_dir.is_dir():
        return 0
    found = maintenance.overview(settings.cache_dir)
    names = {BlockHash(bytes.fromhex(digits)) for digits in erased.blocks}
    doomed = maintenance.with_descendants(found.blocks, names)
    maintenance.delete(settings.cache_dir, doomed)
    return len(doomed)
