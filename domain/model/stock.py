"""Lists the registered models with their states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from domain.engine.workers import WorkerPulse, WorkerPulses, WorkerState
from domain.errors import QueueUnavailable
from domain.log.codec import decode_recorded
from domain.log.ports import EventReader
from domain.model.registry import (
    PAST_EVENTS,
    InspectFiles,
    ModelPast,
    ModelRegistry,
    ModelStatus,
    take_stock,
)
from domain.ports import Clock
from domain.values import ModelCard, WorkerId

#: Events that one read of the log returns.
_PAGE_EVENTS = 500
#: Time in which every live worker renews its heartbeat after an outage of the broker, in seconds.
RENEWAL_S: Final = 3.0
#: States of a worker whose pulse may name a model that it has not loaded.
_WITHOUT_MODEL = frozenset({WorkerState.LOADING, WorkerState.UNLOADED})


class ServingModels:
    """The models that live workers have loaded; any thread may ask.

    A worker that was seen stays while the broker is away, and ``RENEWAL_S`` longer: it works on,
    and its heartbeat may have expired or got lost meanwhile.
    """

    def __init__(self, pulses: WorkerPulses, clock: Clock) -> None:
        self._pulses = pulses
        self._clock = clock
        # Values, each replaced as a whole, so that threads need no lock.
        self._seen: Mapping[WorkerId, WorkerPulse] = {}
        self._renewed_by_s = -math.inf

    def cards(self) -> list[ModelCard]:
        """Return the loaded models by the name of their worker."""
        now_s = self._clock.monotonic()
        try:
            alive = {pulse.worker: pulse for pulse in self._pulses.alive()}
        except QueueUnavailable:
            self._renewed_by_s = now_s + RENEWAL_S
        else:
            self._seen = alive if now_s >= self._renewed_by_s else {**self._seen, **alive}
        seen = self._seen
        return [
            pulse.model
            for pulse in (seen[worker] for worker in sorted(seen))
            if pulse.model is not None and pulse.state not in _WITHOUT_MODEL
        ]


@dataclass(slots=True, eq=False, kw_only=True)
class ModelStock:
    """The registered models; every method blocks.

    Attributes:
        log: The event log; read once, then from the last event on. ``None`` where there is none.
        serving: The models of the workers; ``None`` where no service runs.
    """

    log: EventReader | None
    serving: ServingModels | None
    registry: Callable[[], ModelRegistry]
    inspect: InspectFiles
    # One value, replaced as a whole, so that threads need no lock.
    _known: tuple[int, Mapping[str, ModelPast]] = field(default=(0, {}), init=False)

    def all(self) -> tuple[ModelStatus, ...]:
        """Return every model, those that a worker serves first."""
        serving = [] if self.serving is None else self.serving.cards()
        return take_stock(
            self.registry(), inspect=self.inspect, pasts=self._pasts(), serving=serving
        )

    def _pasts(self) -> Mapping[str, ModelPast]:
        position, pasts = self._known
        while self.log is not None:
            page = self.log.read_all(after=position, limit=_PAGE_EVENTS, types=PAST_EVENTS)
            for recorded in page:
                event = decode_recorded(recorded)
                name, at = str(recorded.data["model"]), datetime.fromisoformat(recorded.recorded_at)
                pasts = {**pasts, name: pasts.get(name, ModelPast()).after(event, at)}
                position = recorded.position
            self._known = position, pasts
            if len(page) < _PAGE_EVENTS:
                break
        return pasts
