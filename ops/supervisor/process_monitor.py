"""Keep one part alive: restart it when it ends, kill it when it hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.exit_codes import FINAL, ExitCode
from ops.observe.logs import Logger
from ops.supervisor.child import Child
from ops.supervisor.parts import Part

#: Pause before the second restart in a row, in seconds; it doubles with each further short run. The
#: first restart has no pause: clients wait for it.
BACKOFF_FIRST_S = 0.2
#: Longest pause between two restarts, in seconds.
BACKOFF_MAX_S = 10.0
#: A run of this length counts as healthy and resets the back-off, in seconds.
HEALTHY_AFTER_S = 30.0
#: Short runs in a row before the service stops: about two and a half minutes of restarts.
SHORT_LIVES_MAX = 20
#: Exit codes of a process that ends in order to be started again: no crash.
PLANNED = frozenset({ExitCode.SWAPPED, ExitCode.LOAD_FAILED, ExitCode.IDLE})
#: Planned exits in a row, each after a short run, that have no pause.
PLANNED_WITHOUT_PAUSE = 40
#: Such exits before the service stops: they do not lead to a worker that lasts.
PLANNED_MAX = 100
#: Exit codes of a worker whose jobs wait for the next one, which has a device of its own.
_WITHOUT_PAUSE = frozenset({ExitCode.DEVICE_FAILED, ExitCode.STUCK})


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the part again after a pause."""

    delay_s: float
    short_lives: int
    planned: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop the whole service with this exit code."""

    exit_code: ExitCode
    reason: str


def decide(
    returncode: int, *, lived_s: float, short_lives: int, planned: int = 0
) -> Restart | GiveUp:
    """Decide about a part that ended without a request to stop.

    Args:
        returncode: Of the process; negative for a signal.
        lived_s: Length of its run, in seconds.
        short_lives: Short runs in a row before this one that ended in a crash.
        planned: Short runs in a row before this one that ended as planned.
    """
    if (reason := FINAL.get(returncode)) is not None:
        return GiveUp(ExitCode(returncode), reason)
    if lived_s >= HEALTHY_AFTER_S:
        return Restart(0.0, 0)
    if returncode in PLANNED:
        return _after_planned_exit(short_lives, planned + 1)
    if short_lives + 1 >= SHORT_LIVES_MAX:
        return GiveUp(ExitCode.CRASHED, f"it ended {SHORT_LIVES_MAX} times in a row")
    if returncode in _WITHOUT_PAUSE:
        return Restart(0.0, short_lives + 1)
    doublings = min(short_lives, SHORT_LIVES_MAX) - 1
    pause_s = min(BACKOFF_FIRST_S * 2**doublings, BACKOFF_MAX_S) if short_lives else 0.0
    return Restart(pause_s, short_lives + 1)


def _after_planned_exit(short_lives: int, planned: int) -> Restart | GiveUp:
    if planned >= PLANNED_MAX:
        return GiveUp(ExitCode.CRASHED, f"it ended to start again {PLANNED_MAX} times in a row")
    beyond = planned - PLANNED_WITHOUT_PAUSE
    pause_s = min(BACKOFF_FIRST_S * 2 ** (beyond - 1), BACKOFF_MAX_S) if beyond > 0 else 0.0
    return Restart(pause_s, short_lives, planned)


#: Interval between two checks for heartbeats, in seconds. Silence is counted in checks and not by a
#: clock: the sleep of the machine does not count as silence of the part.
WATCH_S = 1.0


@dataclass(slots=True, eq=False)
class ProcessMonitor:
    """Starts a part, and restarts it whenever it ends before ``stop``.

    A part without a heartbeat for ``silence_max_s`` is killed, then restarted.

    Attributes:
        on_give_up: Called once if the part must not be restarted.
    """

    part: Part
    launch: Callable[[Part], Child]
    on_start: Callable[[Child], None]
    on_give_up: Callable[[Part, GiveUp], None]
    logger: Logger
    child: Child | None = field(default=None, init=False)
    restarts: int = field(default=0, init=False)
    _stopping: bool = field(default=False, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> Child:
        """Start the part and return its first run."""
        assert self._task is None  # noqa: S101 - a monitor is started once
        child = self._launch_next()
        self._task = asyncio.create_task(self._run(child), name=f"monitor {self.part.name}")
        return child

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop the part without a restart, within its grace time."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
        if self.child is not None and not await self.child.stop(self.part.grace_s, hurry):
            self.logger.warning("killed: it did not end in time", of=self.part.name)

    def _launch_next(self) -> Child:
        self.child = self.launch(self.part)
        self.on_start(self.child)
        return self.child

    async def _run(self, child: Child) -> None:
        last = Restart(0.0, 0)
        while True:
            watching = asyncio.create_task(self._kill_when_silent(child))
            try:
                returncode = await child.wait()
            finally:
                watching.cancel()
            lived_s = child.lived_s
            await child.sweep()
            if self._stopping:
                return
            decision = decide(
                returncode, lived_s=lived_s, short_lives=last.short_lives, planned=last.planned
            )
            if isinstance(decision, GiveUp):
                self.on_give_up(self.part, decision)
                return
            is_planned = returncode in PLANNED
            (self.logger.info if is_planned else self.logger.warning)(
                "ended, starting it again",
                of=self.part.name,
                returncode=returncode,
                lived_s=round(lived_s, 1),
                pause_s=decision.delay_s,
            )
            last = decision
            await asyncio.sleep(decision.delay_s)
            self.restarts += not is_planned
            try:
                child = self._launch_next()
            except OSError as error:
                crashed = GiveUp(ExitCode.CRASHED, f"it cannot be started: {error}")
                self.on_give_up(self.part, crashed)
                return

    async def _kill_when_silent(self, child: Child) -> None:
        limit_s = self.part.silence_max_s
        silent_s: float | None = None
        while limit_s and (silent_s or 0.0) < limit_s:
            await asyncio.sleep(WATCH_S)
            if child.has_beaten():
                silent_s = 0.0
            elif silent_s is not None:
                silent_s += WATCH_S
        if limit_s:
            self.logger.error("no sign of life, killing it", of=self.part.name, silent_s=silent_s)
            child.kill()
