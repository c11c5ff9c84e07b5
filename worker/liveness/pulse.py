"""Publishes the worker's pulse: state, model, cache sizes and queue turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from domain.job.fair_scheduler import TurnState
from domain.job.ports import WorkerPulse, WorkerPulses, WorkerState
from domain.values import ModelCard, WorkerId
from ops.exit_codes import ExitCode
from ops.logs import Logger
from worker.cachestore.cache_gauge import CacheGauge
from worker.control.tuning import WorkerTuning
from worker.engine.engine import BatchEngine
from worker.liveness.worker_metrics import WorkerMetrics

#: Seconds between two pulses.
PULSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class PulseReporter:
    """Publishes one pulse for each call of ``beat``, with the rows while an overview is watched.

    Attributes:
        pulses: Stores the pulses in the broker.
        engine: The engine; a dead one ends the process.
        gauge: Reads the sizes of memory and disk.
        turns: Returns the queue turns.
        tuning: The values of the engine, and whether jobs are started.
        on_forgotten: Called when the broker had lost the last pulse, and so may have lost jobs.
        state: Returns the phase of the process.
        logger: For the operator.
        target: Returns the registered name of the model that this worker has, loads or swaps to.
        metrics: Totals and values for the metrics of the service.
        last_model: The model that is being loaded again, if it was unloaded.
        embeds: Names of its embedding models.
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
        """Publish a pulse; end the process if the engine thread has died.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
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
