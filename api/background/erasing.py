"""Composes the sweeper that erases deleted texts while the service runs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from domain.kv.places import BlockPlaces
from ops.adapters.erasing.sweep import rules_of
from ops.adapters.erasing.sweep_pace import PacedSweeps
from ops.adapters.erasing.sweep_process import sweep_in_process
from ops.adapters.redis.client import Keys, connect
from ops.adapters.redis.erase_items import RedisItemEraser
from ops.blockstore.erase import erase_blocks
from ops.broker.address import is_private, resolve_broker_url
from ops.clock import SystemClock
from ops.settings import Settings

#: Time between two looks for deletions whose texts are to be erased, in seconds.
ERASE_S: Final = 5.0


def open_sweeper(settings: Settings, stack: ExitStack, *, places: BlockPlaces) -> PacedSweeps:
    """Return the sweeps of a process of the service.

    Args:
        settings: Where the log and the blocks are, and the rules.
        stack: Closes the connections.
        places: The blocks of the workers.
    """
    keys, client = Keys(settings.redis.prefix), connect(resolve_broker_url(settings))
    stack.callback(client.close)
    eraser = RedisItemEraser(client, keys, is_private=is_private(settings))
    rules = rules_of(settings.retention)
    sweeper = PacedSweeps(
        settings.log_url,
        rules,
        clock=SystemClock(),
        sweep=partial(sweep_in_process, url=settings.log_url, rules=rules),
        erase_items=eraser.erase,
        erase_blocks=partial(erase_blocks, places=places, root=settings.cache_dir),
    )
    stack.callback(sweeper.close)
    return sweeper
