"""Memory, descriptors and threads of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

from ops.metrics.counter_file import Figures

#: Seconds between two looks at the process.
PROCESS_S = 5.0


class ProcessMetrics:
    """The memory, descriptors and threads of this process, as they were ``PROCESS_S`` ago or later.

    Args:
        clock: Seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process = psutil.Process(os.getpid())
        self._at_s = -PROCESS_S
        self._values: Figures = {}

    def __call__(self) -> Figures:
        """Return the values by metric family."""
        now_s = self._clock()
        if now_s - self._at_s >= PROCESS_S or not self._values:
            self._at_s, process = now_s, self._process
            self._values = {
                "process_resident_memory_bytes": {"": float(process.memory_info().rss)},
                "process_open_fds": {"": float(process.num_fds())},
                "process_threads": {"": float(process.num_threads())},
                "process_start_time_seconds": {"": process.create_time()},
            }
        return self._values
