"""Actions that repeat while the api runs, the sweep of what was deleted among them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from domain.errors import SemanticError
from domain.kv.places import BlockPlaces
from ops.blockstore.maintenance import erase_blocks
from ops.broker.address import is_private, resolve_broker_url
from ops.broker.client import Keys, connect
from ops.broker.items import RedisItemEraser
from ops.clock import SystemClock
from ops.log.erase.sweep import PacedSweeps
from ops.log.erase.sweep_process import sweep_in_process
from ops.observe.logs import Logger
from ops.settings.settings import Settings


@dataclass(slots=True, eq=False)
class PeriodicTasks:
    """Awaits an action at once and then at an interval, until closed.

    An exception is logged, one of the same kind as the one before is not, and the next run comes as
    planned: the task outlives an unreachable log or broker and errors of the operating system.

    Attributes:
        interval_s: From the end of one run to the next.
        action: Awaited in each run; bounds its own time.
    """

    name: str
    interval_s: float
    action: Callable[[], Awaitable[object]]
    logger: Logger
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    async def close(self) -> None:
        """Stop, also in the middle of a run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failing: str | None = None
        while True:
            try:
                await self.action()
            except SemanticError as error:
                if failing != error.code:
                    self.logger.warning("upkeep_failed", task=self.name, error=error.code)
                failing = error.code
            except Exception as error:
                if failing != type(error).__name__:
                    self.logger.exception("upkeep_failed", task=self.name)
                failing = type(error).__name__
            else:
                failing = None
            await asyncio.sleep(self.interval_s)


#: Time between two looks for deletions whose texts are to be erased, in seconds.
ERASE_S: Final = 5.0


def open_sweeper(settings: Settings, stack: ExitStack, *, places: BlockPlaces) -> PacedSweeps:
    """Return the sweeps of a process of the service.

    Args:
        settings: Where the log and the blocks are, and the rules.
    """
    keys, client = Keys(settings.redis.prefix), connect(resolve_broker_url(settings))
    stack.callback(client.close)
    eraser = RedisItemEraser(client, keys, is_private=is_private(settings))
    rules = settings.retention
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
