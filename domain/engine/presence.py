"""Which models the live workers have."""

from __future__ import annotations

from typing import Final

from domain.engine.workers import WorkerPulse, WorkerPulses, WorkerState
from domain.errors import ModelNotLoaded, QueueUnavailable
from domain.ports import Clock

#: Seconds for which the pulses are not read again.
FRESH_S: Final = 0.25


def model_of(pulse: WorkerPulse) -> str | None:
    """Return the registered name of the model that a worker has, loads or swaps to."""
    if pulse.target is not None:
        return pulse.target
    return None if pulse.model is None else pulse.model.id


class LoadedModels:
    """The models of the live workers; any thread may ask.

    Without any pulse, as while the service starts, no model counts as absent.

    Args:
        swaps_on_demand: Whether jobs cause a swap to their model, so that all requests may wait.
    """

    def __init__(
        self, pulses: WorkerPulses, clock: Clock, *, swaps_on_demand: bool = False
    ) -> None:
        self._pulses = pulses
        self._clock = clock
        self._swaps_on_demand = swaps_on_demand
        #: The pulses, and when they were read.
        self._read: tuple[tuple[WorkerPulse, ...], float] | None = None

    def is_absent(self, model: str) -> bool:
        """Whether no live worker has a model, loads it, swaps to it, or embeds with it."""
        if self._is_embedder(model):
            return False
        names = [model_of(pulse) for pulse in self._alive()]
        return bool(names) and None not in names and model not in names

    def has_own_line(self, model: str) -> bool:
        """Whether the jobs of a model hold no place of those of the generating models."""
        return self._is_embedder(model) or self.is_absent(model)

    def _is_embedder(self, model: str) -> bool:
        return any(model in pulse.embeds for pulse in self._alive())

    def require(self, model: str, *, embeds: bool = False) -> None:
        """Refuse a request that cannot wait for its model.

        Args:
            embeds: Whether the request wants vectors; no swap serves it.

        Raises:
            ModelNotLoaded: The model is absent, and its jobs cause no swap.
        """
        if (embeds or not self._swaps_on_demand) and self.is_absent(model):
            ready = (one for one in self._alive() if one.state == WorkerState.READY)
            raise ModelNotLoaded(model, loaded=next(map(model_of, ready), None))

    def has_running_jobs(self) -> bool:
        """Whether a live worker runs a job."""
        return any(pulse.turns is not None and pulse.turns.running for pulse in self._alive())

    def _alive(self) -> tuple[WorkerPulse, ...]:
        # Replaced as a whole: callers that read at the same time read twice and agree.
        now, known = self._clock.monotonic(), self._read
        if known is not None and now - known[1] < FRESH_S:
            return known[0]
        try:
            pulses = self._pulses.alive()
        except QueueUnavailable:
            pulses = ()  # jobs wait until the broker is back
        self._read = pulses, now
        return pulses
