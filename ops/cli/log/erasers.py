"""Erases items and blocks beside the log, whether a service runs or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from domain.errors import LogUnavailable
from domain.values import JobId
from ops.adapters.data_dir.lock import DataDirLocked
from ops.adapters.data_dir.sync import sync_directory
from ops.adapters.redis.block_places import RedisBlockPlaces
from ops.adapters.redis.client import BrokerClient, Keys, connect
from ops.adapters.redis.control import RedisWorkerPulses
from ops.adapters.redis.erase_items import RedisItemEraser
from ops.blockstore.erase import erase_blocks
from ops.broker.address import is_private, resolve_broker_url
from ops.cli.log.exclusive import nothing_runs
from ops.settings import Settings
from ops.supervisor.serve_record import read_record

#: How long to wait for the broker of a running service, in seconds.
BROKER_WAIT_S = 5.0
#: Data files of the private redis-server.
_BROKER_DATA = ("appendonlydir", "dump.rdb", "appendonly.aof")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasers:
    """Erases what the log's database does not hold.

    Attributes:
        items: Erases the stream items of jobs.
        blocks: Deletes blocks, and returns how many files were deleted.
        client: The broker; ``None`` where no service runs and the broker is private.
        is_served: Whether a service runs.
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
        msg = f"not all is erased, repeat this: {error}"
        raise LogUnavailable(msg) from error
