"""The thread of an api process that advances batches.

All its state is in the log: the next process continues the batches of one that was killed, and two
processes at once only do some of the work twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from domain.batch.driver import ROUND_LINES_MAX, BatchDriver
from domain.errors import SemanticError
from ops.observe.logs import Logger

#: Time between two steps while a batch is open, and while none is, in seconds. A step also finds
#: the batches of other processes.
BUSY_S: Final = 0.25
IDLE_S: Final = 5.0
#: Lines that are submitted at once, so that their appends share a commit.
LINES_AT_ONCE: Final = min(16, ROUND_LINES_MAX)
#: How long ``close`` waits for the current step, in seconds.
CLOSE_S: Final = 5.0


class LineThreads:
    """A ``Spread`` on a few threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LINES_AT_ONCE, thread_name_prefix="batch-line")

    def __call__(
        self,
        action: Callable[[tuple[int, bytes]], None],
        elements: Sequence[tuple[int, bytes]],
    ) -> None:
        """Run the action on every element; raise the first failure after all have ended."""
        pending = [self._pool.submit(action, element) for element in elements]
        failures = [error for one in pending if (error := one.exception()) is not None]
        if failures:
            raise failures[0]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


class BatchThread:
    """Advances every open batch step by step, until closed.

    Args:
        woken: Set when a batch has work.
    """

    def __init__(self, driver: BatchDriver, *, woken: threading.Event, logger: Logger) -> None:
        self._driver = driver
        self._logger = logger
        self._woken = woken
        self._closed = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def start(self) -> None:
        """Start the thread; it continues open batches at once."""
        self._thread.start()

    def close(self) -> None:
        """End after the current step."""
        self._closed = True
        self._woken.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            pause_s = BUSY_S if self._step() else IDLE_S
            self._woken.wait(pause_s)

    def _step(self) -> bool:
        """Return whether a batch is open, or may be."""
        try:
            is_open = self._driver.advance() > 0
        except SemanticError as error:
            if not self._is_failing:
                self._logger.warning("batches_wait", error=error.code, why=error.message)
            self._is_failing = True
            return True
        except Exception:
            # A defect that one batch reveals must not end the process; the other batches wait.
            if not self._is_failing:
                self._logger.exception("batches_failed")
            self._is_failing = True
            return False
        self._is_failing = False
        return is_open
