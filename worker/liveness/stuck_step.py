"""Ends the process when a step of the engine does not return."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ops.exit_codes import ExitCode
from ops.logs import Logger
from worker.engine.engine import BatchEngine
from worker.engine.scheduling.step_watch import StepWatch
from worker.liveness.last_step import LastStepFile

#: Seconds between two checks.
CHECK_S = 1.0
#: Seconds after which the process ends even if the ends of its attempts are not recorded.
GIVE_UP_S = 20.0


class StuckStepGuard:
    """Checks the engine's step; a stuck one ends the process.

    The generations of the step fail as by a death of the worker; those that wait in the engine
    return to the queue without a counted failure.

    Args:
        watch: The watch of the engine.
        file: Keeps the step for the next worker, which appends ``WorkerLost``.
        on_stuck: Ends the process once the attempts have ended.
        logger: For the operator.
    """

    def __init__(
        self,
        watch: StepWatch,
        engine: BatchEngine,
        file: LastStepFile,
        *,
        on_stuck: Callable[[], None],
        logger: Logger,
    ) -> None:
        self._watch = watch
        self._engine = engine
        self._file = file
        self._on_stuck = on_stuck
        self._logger = logger
        self._is_stuck = False

    def check(self) -> None:
        """Check once; call every ``CHECK_S``."""
        stuck = self._watch.check(CHECK_S, crowding=crowding())
        if stuck is None or self._is_stuck:
            return
        self._is_stuck = True
        self._file.mark_stuck()
        self._logger.critical("step_stuck", why=stuck.message, age_s=round(stuck.age_s))
        # The log or the broker may be what hangs.
        end = threading.Timer(GIVE_UP_S, os._exit, args=(int(ExitCode.STUCK),))
        end.daemon = True
        end.start()
        self._engine.abandon(stuck.message)
        self._on_stuck()


def crowding() -> float:
    """Return the threads that want to run for each processor, as an average of a minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
