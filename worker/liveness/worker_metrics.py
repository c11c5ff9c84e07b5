"""The metrics of a worker: totals that survive the process, and values of the process."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.metrics.counter_file import CounterFile, Figures
from ops.metrics.families import FAMILIES
from ops.metrics.family import Kind
from ops.metrics.process_metrics import ProcessMetrics

#: Reports what a part of the worker has done so far, and its present values.
MetricSource = Callable[[], Figures]


class WorkerMetrics:
    """Collects the metrics of the worker's parts for its pulse.

    A part that has ended reports nothing or begins anew; the greatest count that it has reported
    stays.

    Args:
        place: Identity of the data directory.
        file: Holds the totals of the workers before.
    """

    def __init__(self, place: str, file: CounterFile) -> None:
        self.place = place
        self.host = platform.node()
        self._file = file
        self._sources: list[MetricSource] = [ProcessMetrics()]
        self._counted: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, data_dir: Path, *, place: str) -> WorkerMetrics:
        """Return the metrics of the worker of a data directory, whose lock the caller holds."""
        return cls(place, CounterFile(data_dir / "worker.counters.json"))

    def add(self, *sources: MetricSource) -> None:
        """Collect from further parts from now on."""
        self._sources.extend(sources)

    def read(self) -> Figures:
        """Return the totals, which are in the file before, and the present values."""
        values: dict[str, dict[str, float]] = {}
        with self._lock:
            for name, found in _merged([source() for source in self._sources]):
                if FAMILIES[name].kind is Kind.GAUGE:
                    values.setdefault(name, {}).update(found)
                    continue
                known = self._counted.setdefault(name, {})
                for label, count in found.items():
                    known[label] = max(count, known.get(label, 0.0))
            counted = {name: dict(counts) for name, counts in self._counted.items()}
        return {**self._file.publish(counted), **values}


class TokenRate:
    """The tokens that an engine generates per second, between two readings.

    Args:
        generated: Returns the tokens that it has generated so far.
        clock: Seconds.
    """

    def __init__(
        self, generated: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._generated = generated
        self._clock = clock
        self._before = generated(), clock()

    def __call__(self) -> Figures:
        """Return the rate since the reading before."""
        (tokens_before, at_s), now = self._before, (self._generated(), self._clock())
        self._before = now
        elapsed_s = now[1] - at_s
        rate = max(0, now[0] - tokens_before) / elapsed_s if elapsed_s > 0 else 0.0
        return {"tokens_per_second": {"": round(rate, 3)}}


def _merged(readings: Sequence[Figures]) -> list[tuple[str, dict[str, float]]]:
    return [(name, dict(found)) for figures in readings for name, found in figures.items()]
