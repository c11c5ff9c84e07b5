"""Keep one standby of a part: a process that has its imports and waits for its activation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ops.logs import Logger
from ops.supervisor.child import Child
from ops.supervisor.parts import Part

#: Pause after a standby that ended by itself, in seconds; the system may be short of memory.
STANDBY_RETRY_S = 60.0


class StandbySlot:
    """Holds at most one standby. Belongs to one event loop.

    Args:
        part: The part, which has a ``standby_argv``.
        launch: Starts a standby with this environment.
        on_change: Called with the standby that waits now, or ``None``.
        logger: Receives the standby's ends.
    """

    def __init__(
        self,
        part: Part,
        *,
        launch: Callable[[Part, Mapping[str, str]], Child],
        on_change: Callable[[Child | None], None],
        logger: Logger,
    ) -> None:
        self._part = part
        self._launch = launch
        self._on_change = on_change
        self._logger = logger
        self._child: Child | None = None
        self._environment: Mapping[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def refill(self, environment: Mapping[str, str]) -> None:
        """Start a standby once the part has lived for ``standby_after_s``.

        Call it after each start of the part; a part that ends before has a cold successor.

        Args:
            environment: The standby's whole environment.
        """
        self.close()
        self._environment = environment
        self._task = asyncio.create_task(self._keep(), name=f"standby of {self._part.name}")

    def take(self, environment: Mapping[str, str]) -> Child | None:
        """Activate the standby and return it, if there is one that fits.

        Args:
            environment: What the part must have; a standby that was started with other values is
                killed.

        Returns:
            ``None`` if the part must be started cold.
        """
        child = self._child
        if child is None or environment != self._environment:
            self.close()
            return None
        self._release()
        if not child.activate():
            child.discard()
            return None
        self._logger.info("activated the standby", of=self._part.name, to_pid=child.pid)
        return child

    def close(self) -> None:
        """Kill the standby, if there is one, and start no other."""
        child = self._child
        self._release()
        if child is not None:
            child.discard()

    def _release(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._set(None)

    def _set(self, child: Child | None) -> None:
        if child is not self._child:
            self._child = child
            self._on_change(child)

    async def _keep(self) -> None:
        await asyncio.sleep(self._part.standby_after_s)
        while True:
            try:
                child = self._launch(self._part, self._environment)
            except OSError as error:
                self._logger.warning("no standby", of=self._part.name, why=str(error))
            else:
                self._set(child)
                returncode = await child.wait()
                self._set(None)
                child.discard()
                self._logger.warning("the standby ended", of=self._part.name, returncode=returncode)
            await asyncio.sleep(STANDBY_RETRY_S)
