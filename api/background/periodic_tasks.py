"""Periodic actions on the event loop of the api process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from domain.errors import SemanticError
from ops.logs import Logger


class PeriodicTasks:
    """Awaits an action at once and then at an interval, until closed.

    An exception is logged, one of the same kind as the one before is not, and the next run comes as
    planned: the task outlives an unreachable log or broker and errors of the operating system.

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
        failing: str | None = None
        while True:
            try:
                await self._action()
            except SemanticError as error:
                if failing != error.code:
                    self._logger.warning("upkeep_failed", task=self._name, error=error.code)
                failing = error.code
            except Exception as error:
                if failing != type(error).__name__:
                    self._logger.exception("upkeep_failed", task=self._name)
                failing = type(error).__name__
            else:
                failing = None
            await asyncio.sleep(self._interval_s)
