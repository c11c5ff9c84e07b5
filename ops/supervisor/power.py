"""Keeps a Mac awake while jobs run: an idle system sleeps and stops every stream."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ops.observe.logs import Logger

#: Seconds between two looks whether jobs run.
LOOK_S = 5.0
#: Looks without a running job after which the system may sleep again.
IDLE_LOOKS = 3


def awake_command(platform: str = sys.platform) -> tuple[str, ...]:
    """Return the command that prevents idle sleep while it runs; empty where none is needed.

    ``caffeinate`` ends by itself with this process, so a killed supervisor leaves none.
    """
    return ("caffeinate", "-i", "-w", str(os.getpid())) if platform == "darwin" else ()


@dataclass(slots=True, eq=False)
class PowerAssertion:
    """Holds a process that prevents sleep for as long as jobs run.

    Attributes:
        command: The process; it ends on SIGTERM.
        runs_jobs: Returns whether jobs run; ``None`` if that is not known now.
        logger: Receives a command that does not exist.
    """

    command: Sequence[str]
    runs_jobs: Callable[[], Awaitable[bool | None]]
    logger: Logger
    _holder: asyncio.subprocess.Process | None = field(default=None, init=False)
    _idle_looks: int = field(default=0, init=False)

    @property
    def is_held(self) -> bool:
        """Whether the process runs."""
        return self._holder is not None and self._holder.returncode is None

    async def follow(self, look_s: float = LOOK_S) -> None:
        """Hold and release the assertion until this task is cancelled."""
        try:
            while await self.look():  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(look_s)
        finally:
            self._release()

    async def look(self) -> bool:
        """Hold or release the assertion once; return ``False`` where it cannot be held."""
        runs_jobs = await self.runs_jobs()
        if runs_jobs:
            self._idle_looks = 0
            return self.is_held or await self._hold()
        self._idle_looks += runs_jobs is False
        if self._idle_looks >= IDLE_LOOKS:
            self._release()
        return True

    async def _hold(self) -> bool:
        try:
            self._holder = await asyncio.create_subprocess_exec(*self.command)
        except OSError as error:
            self.logger.warning("the system may sleep while jobs run", why=str(error))
            return False
        return True

    def _release(self) -> None:
        if self._holder is not None:
            with suppress(ProcessLookupError):
                self._holder.terminate()
            self._holder = None
