"""Counters that outlive their process, and the memory, descriptors and threads of this one."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import psutil
import structlog

from ops.data_dir.permissions import replace_file

#: Values by family, and by the value of the one label that the family has beside its owner.
Figures: TypeAlias = Mapping[str, Mapping[str, float]]

_log = structlog.get_logger(__name__)


class CounterFile:
    """The totals of one owner, whose file no other process writes.

    Args:
        path: E.g. ``<data_dir>/worker.counters.json``. A missing or broken file counts as empty.
            ``None`` for totals of this process alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._before = {} if path is None else _read(path)
        self._written: Figures = self._before
        self._lock = threading.Lock()
        self._is_failing = False

    def publish(self, counted: Figures) -> Figures:
        """Return the totals after they are in the file.

        Args:
            counted: What this process has counted so far.
        """
        with self._lock:
            totals = added(self._before, counted)
            if self._path is not None and totals != self._written:
                self._write(totals, self._path)
            return totals

    def _write(self, totals: Figures, path: Path) -> None:
        try:
            replace_file(path, json.dumps(totals))
        except OSError as error:
            # A full disk must not end the pulse; the totals of this process stay right.
            if not self._is_failing:
                _log.warning("counters_not_saved", file=str(path), why=str(error))
            self._is_failing = True
            return
        self._written, self._is_failing = totals, False


def added(before: Figures, counted: Figures) -> dict[str, dict[str, float]]:
    """Return the sums of both; a name that only one of them has keeps its value."""
    totals = {family: dict(values) for family, values in before.items()}
    for family, values in counted.items():
        sums = totals.setdefault(family, {})
        for label, value in values.items():
            sums[label] = sums.get(label, 0.0) + value
    return totals


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        stored = json.loads(path.read_text())
        return {
            str(family): {str(label): float(value) for label, value in values.items()}
            for family, values in stored.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


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
