"""Applies what operators have changed in the log to this worker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Protocol

from domain.engine.control import AdmissionState, EngineValues
from domain.usecases.engine_control import EngineControls
from ops.logs import Logger

#: Seconds between two looks at the log; a signal makes the worker look at once.
LOOK_S = 1.0
#: Jobs handed to the engine beyond its batch, so that a free place in the batch is filled at once.
SLOTS_AHEAD = 2


class TunableEngine(Protocol):
    """An engine whose values change while it runs."""

    def tune(self, values: EngineValues) -> None:
        """Run with other values from the next step on."""
        ...


class TunableTurns(Protocol):
    """Gives jobs their turns."""

    def set_slots(self, slots: int) -> None:
        """Change how many jobs may run at once."""
        ...

    def set_paused(self, *, paused: bool) -> None:
        """Grant no turns, or grant them again."""
        ...


class SharedQueue(Protocol):
    """The consumer side of the queue."""

    shared_unacked_max: int | None


class WorkerTuning:
    """What operators have changed, as this worker has applied it.

    Args:
        controls: Reads the changes.
        settings: Values where operators have changed none.
        turns: The turns of the jobs.
        logger: For the operator.

    Attributes:
        control: The changes that are applied.

    Raises:
        LogUnavailable: The log cannot be read.
    """

    def __init__(
        self,
        controls: EngineControls,
        settings: EngineValues,
        *,
        engine: TunableEngine,
        turns: TunableTurns,
        queue: SharedQueue,
        logger: Logger,
    ) -> None:
        self._controls = controls
        self._settings = settings
        self._engine = engine
        self._turns = turns
        self._queue = queue
        self._logger = logger
        self.control = controls.current()
        self._apply()

    @property
    def values(self) -> EngineValues:
        """The values in force."""
        return self.control.tuning.over(self._settings)

    def apply(self) -> None:
        """Apply what is new in the log.

        Raises:
            LogUnavailable: The log cannot be read; everything stays as it is.
        """
        control = self._controls.current()
        if control != self.control:
            self.control = control
            self._apply()

    def _apply(self) -> None:
        admission, values = self.control.admission, self.values
        slots = values.max_batch_size + SLOTS_AHEAD
        self._engine.tune(values)
        self._queue.shared_unacked_max = slots
        self._turns.set_paused(paused=admission is not AdmissionState.OPEN)
        self._turns.set_slots(slots)
        if self.control.version:
            self._logger.info("engine_control", admission=admission.value, **asdict(values))
