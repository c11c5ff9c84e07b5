"""Publishes the worker's pulse: state, model, cache sizes, queue turns and metrics."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from domain.engine.figures import WorkCounts
from domain.engine.workers import TurnState, WorkerPulse, WorkerPulses, WorkerState
from domain.values import ModelCard, WorkerId
from ops.exit_codes import ExitCode
from ops.observe.counter_file import CounterFile, Figures, ProcessMetrics
from ops.observe.families import FAMILIES, Kind
from ops.observe.logs import Logger
from worker.cachestore.cache_gauge import CacheGauge
from worker.control.tuning import WorkerTuning
from worker.engine.engine import BatchEngine

#: Reports what a part of the worker has done so far, and its present values.
MetricSource = Callable[[], Figures]


class WorkerMetrics:
    """Collects the metrics of the worker's parts for its pulse.

    A part that has ended reports nothing or begins anew; the greatest count that it has reported
    stays.

    Args:
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
            readings = [*(source() for source in self._sources), self._of_engine(work)]
            for name, found in chain.from_iterable(one.items() for one in readings):
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
    """The tokens that an engine generates per second, between two readings."""

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


#: Seconds between two pulses.
PULSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class PulseReporter:
    """Publishes one pulse for each call of ``beat``, with the rows while an overview is watched.

    Attributes:
        engine: The engine; a dead one ends the process.
        on_forgotten: Called when the broker had lost the last pulse, and so may have lost jobs.
        target: Returns the registered name of the model that this worker has, loads or swaps to.
        last_model: The model that is being loaded again, if it was unloaded.
    """

    worker: WorkerId
    pulses: WorkerPulses
    engine: BatchEngine
    gauge: CacheGauge
    turns: Callable[[], TurnState]
    tuning: WorkerTuning
    on_forgotten: Callable[[], None]
    state: Callable[[], WorkerState]
    logger: Logger
    target: Callable[[], str]
    metrics: WorkerMetrics
    last_model: ModelCard | None = None
    embeds: tuple[str, ...] = ()
    _is_watched: bool = field(default=False, init=False)

    def beat(self) -> None:
        """Publish a pulse; end the process if the engine thread has died."""
        state = self.state()
        is_ready = state is WorkerState.READY
        if is_ready and not self.engine.is_alive():
            self.logger.critical("engine_dead")
            # The supervisor starts a new worker, which takes over every job in hand.
            os._exit(int(ExitCode.FAILED))
        waiting = self.engine.waiting_jobs()
        self.gauge.record_waiting(waiting)
        figures = self.engine.figures()
        pulse = WorkerPulse(
            worker=self.worker,
            pid=os.getpid(),
            state=state.value,
            model=self._model(state),
            target=self.target(),
            cache=self.gauge.read(),
            drafts=self.gauge.read_drafts(),
            turns=self._turn_state() if is_ready else None,
            waiting=waiting,
            values=self.tuning.values if is_ready else None,
            admission=self.tuning.control.admission,
            counts=figures.counts if is_ready else None,
            slow_step=figures.slow_step,
            rows=figures.rows if self._is_watched else None,
            place=self.metrics.place,
            host=self.metrics.host,
            embeds=self.embeds,
            metrics=self.metrics.read(figures.counts if is_ready else None),
        )
        reply = self.pulses.beat(pulse)
        if not reply.was_known:
            self.on_forgotten()
        if reply.is_watched and not self._is_watched:
            self.pulses.beat(replace(pulse, rows=figures.rows))
        self._is_watched = reply.is_watched

    def _model(self, state: WorkerState) -> ModelCard | None:
        match state:
            case WorkerState.READY:
                return self.engine.card()
            case WorkerState.LOADING:
                return self.last_model
            case _:
                return None

    def _turn_state(self) -> TurnState:
        # The scheduler's own slots include jobs that the engine receives ahead of time.
        return replace(self.turns(), slots=self.tuning.values.max_batch_size)
