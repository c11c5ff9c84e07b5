"""Runs a small action at an interval, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import structlog

from domain.errors import SemanticError


class PeriodicTask:
    """Runs an action at once and then at an interval, until closed.

    An exception is logged, one of the same kind as the one before is not, and the next run comes as
    planned: the task outlives an unavailable broker and errors of the operating system.

    Args:
        name: Of the thread and in the log.
        interval_s: Seconds between the end of a run and the start of the next.
    """

    def __init__(self, name: str, interval_s: float, action: Callable[[], object]) -> None:
        self._action = action
        self._interval_s = interval_s
        self._closed = False
        self._woken = threading.Event()
        self._logger = structlog.get_logger("worker.liveness.periodic_tasks").bind(task=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self.close()

    def start(self) -> None:
        """Start the thread; the first run comes at once."""
        self._thread.start()

    def wake(self) -> None:
        """Start the next run at once, or right after the current one."""
        self._woken.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop after the current run."""
        self._closed = True
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failing: str | None = None
        while True:
            try:
                self._action()
            except SemanticError as error:
                if failing != error.code:
                    self._logger.warning("turn_failed", error=error.code, why=error.message)
                failing = error.code
            except Exception as error:
                if failing != type(error).__name__:
                    self._logger.exception("turn_failed")
                failing = type(error).__name__
            else:
                failing = None
            self._woken.wait(self._interval_s)
            self._woken.clear()
            if self._closed:
                return
