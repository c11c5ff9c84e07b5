"""Starts a worker that runs without a supervisor again after a planned exit."""

from __future__ import annotations

import os
import sys
import time

from ops.exit_codes import ExitCode
from ops.liveness.parent_watch import LIFELINE_ENV
from ops.logs import Logger
from ops.supervisor.restart_policy import PLANNED, GiveUp, decide

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
            logger: For the operator.
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
