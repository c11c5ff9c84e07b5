"""Ends the work of a process in order, and starts a worker without supervisor again."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import structlog

from ops.exit_codes import ExitCode
from ops.liveness.child import LIFELINE_ENV
from ops.observe.logs import Logger
from ops.supervisor.process_monitor import PLANNED, GiveUp, decide
from worker.actors import LOOK_S, Consumers
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.turn_scheduler import ActiveJobs, TurnScheduler

#: Seconds after the drain time for the last events and items.
DRAIN_GRACE_S = 5.0
#: Seconds after an error of the device for the ends of the running attempts to be recorded.
LAST_ATTEMPTS_S = 5.0
#: Seconds that a planned exit waits for the contexts in memory to reach the disk.
SAVE_S = 60.0
#: The same for a stop: the sender of the signal kills the process soon after the drain time.
STOP_SAVE_S = 8.0
_POLL_S = 0.01

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedExit:
    """An end after which the worker is started again.

    Attributes:
        drain_s: Seconds that running jobs have to finish.
    """

    code: ExitCode
    drain_s: float


def last_saves_s(planned: PlannedExit | None, *, is_asked_to_stop: bool) -> float:
    """Return how long a worker that ends waits for its contexts to reach the disk, in seconds."""
    return STOP_SAVE_S if planned is None or is_asked_to_stop else SAVE_S


class _Deadline:
    """The end of a drain, which a request to stop brings forward.

    Args:
        drain_s: Seconds from now.
        hurried_s: Seconds from the request, at most.
    """

    def __init__(self, drain_s: float, *, hurried_s: float, is_hurried: threading.Event) -> None:
        self._at_s = time.monotonic() + drain_s
        self._hurried_s = hurried_s
        self._is_hurried = is_hurried
        self._was_hurried = False

    def left_s(self, grace_s: float = 0.0) -> float:
        """Return the seconds until ``grace_s`` after the end, at least 0; from any thread."""
        now_s = time.monotonic()
        if not self._was_hurried and self._is_hurried.is_set():
            self._was_hurried = True
            self._at_s = min(self._at_s, now_s + self._hurried_s)
        return max(0.0, self._at_s + grace_s - now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrain:
    """Gives running generations time to finish; the next worker takes the rest.

    Attributes:
        stop_s: Seconds that generations have once the process is asked to stop.
        is_asked_to_stop: Set by a signal; it shortens the drain of a planned exit.
        on_saving: Called once no generation runs, before contexts are saved.
    """

    engine: BatchEngine
    consumers: Consumers
    stop_s: float
    is_asked_to_stop: threading.Event
    on_saving: Callable[[], None]

    def run(self, planned: PlannedExit | None) -> None:
        """Drain, save and end the threads of engine and consumers.

        Args:
            planned: The planned exit; ``None`` for a stop.
        """
        drain_s = self.stop_s if planned is None else planned.drain_s
        deadline = _Deadline(drain_s, hurried_s=self.stop_s, is_hurried=self.is_asked_to_stop)
        closer = threading.Thread(target=self._close, args=(deadline,), name="engine-close")
        closer.start()
        # Jobs whose ends cannot be published, because the broker is away, must not outlast a stop.
        self.consumers.stop(partial(deadline.left_s, DRAIN_GRACE_S))
        saved_s = deadline.left_s(2 * DRAIN_GRACE_S)
        closer.join(saved_s if planned is None else SAVE_S + DRAIN_GRACE_S)

    def _close(self, deadline: _Deadline) -> None:
        while not self.engine.drain(LOOK_S) and deadline.left_s():
            pass
        self.on_saving()
        self.engine.close(0.0)


def leave(
    code: ExitCode, turns: TurnScheduler, active: ActiveJobs, tier: DiskTier | None
) -> NoReturn:
    """End the process after a failure of its engine, with all KV that it holds.

    Nothing is closed: closing would write blocks that may be wrong.
    """
    if tier is not None:
        tier.abandon()
    turns.close()
    give_up_at_s = time.monotonic() + LAST_ATTEMPTS_S
    while active.jobs() and time.monotonic() < give_up_at_s:
        time.sleep(_POLL_S)
    _log.critical(code.name.lower(), unrecorded=len(active))
    os._exit(int(code))


#: Environment variable with the number of short runs in a row that ended as planned.
_PLANNED_ENV = "SEMANTIC_PLANNED_RUNS"


class RestartAlone:
    """Replaces the process by a new one of the same command.

    Make it at the start of the process.
    """

    def __init__(self) -> None:
        # ``watch_lifeline`` removes the variable.
        self._is_supervised = LIFELINE_ENV in os.environ
        self._planned = int(os.environ.get(_PLANNED_ENV) or 0)
        self._started_s = time.monotonic()

    def after(self, code: int, logger: Logger) -> int:
        """Start again after a planned exit; otherwise return the exit code of the process.

        Args:
            code: Of the run that has ended; its locks and files are closed.
        """
        if self._is_supervised or code not in PLANNED:
            return code
        lived_s = time.monotonic() - self._started_s
        decision = decide(code, lived_s=lived_s, short_lives=0, planned=self._planned)
        if isinstance(decision, GiveUp):
            logger.error("not_started_again", why=decision.reason)
            return int(decision.exit_code)
        logger.info("starts_again", after=ExitCode(code).name.lower(), pause_s=decision.delay_s)
        time.sleep(decision.delay_s)
        os.environ[_PLANNED_ENV] = str(decision.planned)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        arguments = [sys.executable, *sys.orig_argv[1:]]
        return os.execv(sys.executable, arguments)  # noqa: S606 - the same command, no shell
