"""Lists the registered models with their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from domain.errors import QueueUnavailable
from domain.job.ports import WorkerPulses, WorkerState
from domain.log.codec import decode_recorded
from domain.log.record import RecordedEvent
from domain.model.inventory import PAST_EVENTS, InspectFiles, ModelPast, ModelStatus, take_stock
from domain.model.registry import ModelRegistry
from domain.values import ModelCard

#: Events that one read of the log returns.
_PAGE_EVENTS = 500
#: States of a worker whose pulse may name a model that it has not loaded.
_WITHOUT_MODEL = frozenset({WorkerState.LOADING, WorkerState.UNLOADED})


class LoadLog(Protocol):
    """The part of ``EventLog`` that is read here."""

    def read_all(
        self, *, after: int = 0, limit: int = 100, types: Sequence[str] = ()
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.read_all``."""
        ...


class ModelStock:
    """The registered models; every method blocks.

    Args:
        log: The event log; read once, then from the last event on. ``None`` where there is none.
        pulses: The living workers; ``None`` where no service runs.
        registry: Returns the registered models.
        inspect: Returns the files of a model, if they are here.
    """

    def __init__(
        self,
        *,
        log: LoadLog | None,
        pulses: WorkerPulses | None,
        registry: Callable[[], ModelRegistry],
        inspect: InspectFiles,
    ) -> None:
        self._log = log
        self._pulses = pulses
        self.registry = registry
        self._inspect = inspect
        # One value, replaced as a whole, so that threads need no lock.
        self._known: tuple[int, Mapping[str, ModelPast]] = (0, {})

    def all(self) -> tuple[ModelStatus, ...]:
        """Return every model, those that a worker serves first."""
        serving = [] if self._pulses is None else serving_models(self._pulses)
        return take_stock(
            self.registry(), inspect=self._inspect, pasts=self._pasts(), serving=serving
        )

    def _pasts(self) -> Mapping[str, ModelPast]:
        position, pasts = self._known
        while self._log is not None:
            page = self._log.read_all(after=position, limit=_PAGE_EVENTS, types=PAST_EVENTS)
            for recorded in page:
                event = decode_recorded(recorded)
                name, at = str(recorded.data["model"]), datetime.fromisoformat(recorded.recorded_at)
                pasts = {**pasts, name: pasts.get(name, ModelPast()).after(event, at)}
                position = recorded.position
            self._known = position, pasts
            if len(page) < _PAGE_EVENTS:
                break
        return pasts


def serving_models(pulses: WorkerPulses) -> list[ModelCard]:
    """Return the models that live workers have loaded; none while the broker is unavailable."""
    try:
        alive = pulses.alive()
    except QueueUnavailable:
        return []
    return [
        pulse.model
        for pulse in alive
        if pulse.model is not None and pulse.state not in _WITHOUT_MODEL
    ]
