"""Periodic actions on the event loop of the api process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from domain.errors import SemanticError
from ops.logs import Logger


class PeriodicTasks:
    """Awaits an action at once and then at an interval, until closed.

    A ``SemanticError`` is logged once, and the next run comes as planned: the task outlives an
    unreachable log or broker.

    Args:
        name: For the operator.
        interval_s: From the end of one run to the next.
        action: Awaited in each run; bounds its own time.
        logger: Records failures.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        action: Callable[[], Awaitable[object]],
        *,
        logger: Logger,
    ) -> None:
        self._name = name
        self._interval_s = interval_s
        self._action = action
        self._logger = logger
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Stop, also in the middle of a run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await self._action()
            except SemanticError as error:
                if not failing:
                    self._logger.warning("upkeep_failed", task=self._name, error=error.code)
                failing = True
            else:
                failing = False
            await asyncio.sleep(self._interval_s)
