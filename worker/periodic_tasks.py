"""Something small that a process does again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import structlog

from domain.errors import SemanticError


class PeriodicTask:
    """Runs an action on a thread of its own, at once and then at an interval, until closed.

    A ``SemanticError`` is logged and the next turn comes as planned: what runs here is upkeep that
    must outlive a broker that is away.
    """

    def __init__(self, name: str, interval_s: float, action: Callable[[], object]) -> None:
        self._action = action
        self._interval_s = interval_s
        self._closed = False
        self._woken = threading.Event()
        self._logger = structlog.get_logger("worker.periodic_tasks").bind(task=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self.close()

    def start(self) -> None:
        """Begin; the first turn comes at once."""
        self._thread.start()

    def wake(self) -> None:
        """Have the next turn come at once; after the one that is running, if one is."""
        self._woken.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop after the turn that is running."""
        self._closed = True
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failing = False
        while True:
            try:
                self._action()
            except SemanticError as error:
                if not failing:
                    self._logger.warning("turn_failed", error=error.code, why=error.message)
                failing = True
            else:
                failing = False
            self._woken.wait(self._interval_s)
            self._woken.clear()
            if self._closed:
                return
