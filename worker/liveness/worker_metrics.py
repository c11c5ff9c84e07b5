"""The metrics of a worker: totals that survive the process, and values of the process."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from domain.engine.figures import WorkCounts
from ops.metrics.counter_file import CounterFile, Figures, ProcessMetrics
from ops.metrics.families import FAMILIES
from ops.metrics.family import Kind

#: Reports what a part of the worker has done so far, and its present values.
MetricSource = Callable[[], Figures]


class WorkerMetrics:
    """Collects the metrics of the worker's parts for its pulse.

    A part that has ended reports nothing or begins anew; the greatest count that it has reported
    stays.

    Args:
        place: Identity of the data directory.
        file: Holds the totals of the workers before.
        clock: Seconds.
    """

    def __init__(
        self,
        place: str,
        file: CounterFile,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self.host = platform.node()
        self._file = file
        self._sources: list[MetricSource] = [ProcessMetrics()]
        self._counted: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()
        self._rate = TokenRate(clock)

    @classmethod
    def of(cls, data_dir: Path, *, place: str) -> WorkerMetrics:
        """Return the metrics of the worker of a data directory, whose lock the caller holds."""
        return cls(place, CounterFile(data_dir / "worker.counters.json"))

    def add(self, *sources: MetricSource) -> None:
        """Collect from further parts from now on."""
        self._sources.extend(sources)

    def read(self, work: WorkCounts | None = None) -> Figures:
        """Return the totals, which are in the file before, and the present values.

        Args:
            work: What the engine has done so far; ``None`` for a worker without one.
        """
        values: dict[str, dict[str, float]] = {}
        with self._lock:
            for name, found in _merged(
                [*(source() for source in self._sources), self._of_engine(work)]
            ):
                if FAMILIES[name].kind is Kind.GAUGE:
                    values.setdefault(name, {}).update(found)
                    continue
                known = self._counted.setdefault(name, {})
                for label, count in found.items():
                    known[label] = max(count, known.get(label, 0.0))
            counted = {name: dict(counts) for name, counts in self._counted.items()}
        return {**self._file.publish(counted), **values}

    def _of_engine(self, work: WorkCounts | None) -> Figures:
        if work is None:
            return {}
        return {
            "worker_starts_total": {"": 1.0},
            "engine_generated_tokens_total": {"": float(work.generated_tokens)},
            "engine_prefill_tokens_total": {"": float(work.computed_tokens)},
            "tokens_per_second": {"": self._rate.read(work.generated_tokens)},
        }


class TokenRate:
    """The tokens that an engine generates per second, between two readings.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = 0
        self._at_s: float | None = None

    def read(self, tokens: int) -> float:
        """Return the rate since the reading before; 0 at the first one.

        Args:
            tokens: Tokens that the engine has generated so far.
        """
        now_s, before_s, fresh = self._clock(), self._at_s, tokens - self._tokens
        self._tokens, self._at_s = tokens, now_s
        if before_s is None or now_s <= before_s:
            return 0.0
        return round(max(0, fresh) / (now_s - before_s), 3)


def _merged(readings: Sequence[Figures]) -> list[tuple[str, dict[str, float]]]:
    return [(name, dict(found)) for figures in readings for name, found in figures.items()]
