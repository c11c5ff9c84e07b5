"""Swaps of the loaded model: those that operators want, and those that waiting jobs cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from domain.engine.presence import LoadedModels
from domain.engine.workers import ControlSignals, ControlTopic
from domain.errors import QueueUnavailable
from domain.events.model import WantedModelEvent
from domain.job.listing import JobViews
from domain.log.codec import decode_recorded
from domain.log.folded_stream import FoldedStream
from domain.log.ports import EventLog
from domain.log.record import RecordedEvent
from domain.model.swap import (
    RequestSwap,
    SwapCommand,
    decide,
    evolve_all,
)
from domain.model.wanted_model import (
    DRAIN_S,
    MODELS_STREAM,
    Swap,
    SwapReason,
    SwapState,
    WantedModel,
    WantedModels,
)
from domain.ports import Clock, IdSource
from domain.values import Priority, rfc3339

#: Least seconds for which a model that jobs have caused serves.
RESIDENCE_MIN_S: Final = 60.0


#: Seconds after which a waiting job ends the turn of a model that has work.
WAIT_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandRules:
    """The limits of swaps that jobs cause."""

    residence_min_s: float = RESIDENCE_MIN_S
    wait_max_s: float = WAIT_MAX_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """Jobs that wait for a model.

    Attributes:
        model: The model; no worker has it.
        waited_s: Seconds since its oldest job was accepted, or since the model left if that is
            later.
    """

    model: str
    waited_s: float


def next_model(
    rules: OnDemandRules, demands: Sequence[ModelDemand], *, served_s: float, is_busy: bool
) -> str | None:
    """Return the model to swap to now; ``None`` to stay with the present one.

    Args:
        demands: Each model that jobs wait for.
        served_s: Seconds since the present model serves.
        is_busy: Whether jobs wait for the present model, or run.
    """
    if not demands or served_s < rules.residence_min_s:
        return None
    longest = max(demands, key=lambda demand: demand.waited_s)
    if is_busy and longest.waited_s < rules.wait_max_s:
        return None
    return longest.model


@dataclass(slots=True)
class ModelSwaps:
    """The wanted model of a log. May be used from any thread.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written:
    nothing has changed then.
    """

    log: EventLog
    ids: IdSource
    _stream: FoldedStream[WantedModels] = field(init=False)

    def __post_init__(self) -> None:
        self._stream = FoldedStream(
            MODELS_STREAM, log=self.log, ids=self.ids, initial=WantedModels(), evolve=_evolve
        )

    def new_id(self) -> str:
        """Return the id of a new swap, ``swap-`` and a UUIDv7 in hex: sorts by creation."""
        return f"swap-{self.ids.event_id()}"

    def read(self, place: str = "") -> WantedModel:
        """Return the wanted model of the worker of a place, or that of workers without one."""
        return self.read_all().at(place)

    def read_all(self) -> WantedModels:
        """Return the wanted models of all places."""
        return self._stream.read()

    def request(
        self,
        model: str,
        *,
        drain_s: float = DRAIN_S,
        place: str = "",
        reason: str = "",
        correlation_id: str = "",
    ) -> Swap:
        """Record that the workers are to serve a model, and return the swap.

        Args:
            model: A registered name.
            reason: What causes the swap; by default a request.
        """
        reason = reason or SwapReason.REQUEST
        swap_id = self.new_id()
        command = RequestSwap(
            swap=swap_id, model=model, reason=reason, drain_s=drain_s, place=place
        )
        swap = self.apply(command, place=place, correlation_id=correlation_id).get(swap_id)
        assert swap is not None, "an appended swap is in the state"
        return swap

    def request_on_demand(self, model: str) -> Swap | None:
        """Record that jobs want a model; ``None`` while another swap is open."""
        swap_id = self.new_id()
        command = RequestSwap(swap=swap_id, model=model, reason=SwapReason.ON_DEMAND)
        return self.apply(command).get(swap_id)

    def apply(
        self, command: SwapCommand, *, place: str = "", correlation_id: str = ""
    ) -> WantedModel:
        """Decide on the present state and append; decide again after a concurrent append.

        Args:
            place: The place whose wanted model decides and is returned.
            correlation_id: The request that led to it; by default the first event of it.

        Returns:
            The state after the append.
        """
        self._stream.commit(
            lambda state: decide(state.at(place), command), correlation_id=correlation_id
        )
        return self.read(place)


def _evolve(state: WantedModels, recorded: RecordedEvent) -> WantedModels:
    event = decode_recorded(recorded)
    assert isinstance(event, WantedModelEvent)
    return evolve_all(state, event, at=recorded.recorded_at, version=recorded.version)


#: Seconds for which a model that could not be loaded is not tried again.
FAILED_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandSwaps:
    """Swaps to models that jobs wait for; one per process."""

    views: JobViews
    models: LoadedModels
    swaps: ModelSwaps
    signals: ControlSignals
    clock: Clock
    rules: OnDemandRules

    def swap_if_due(self) -> Swap | None:
        """Request the swap that is due, and return it.

        Raises:
            LogUnavailable: Nothing was requested.
        """
        absent = [model for model in self.views.bound_models() if self.models.is_absent(model)]
        if not absent:
            return None
        state, now = self.swaps.read(), self.clock.now()
        if state.open_swap is not None or state.served_at is None:
            return None
        model = next_model(
            self.rules,
            [*self._demands(absent, state, now)],
            served_s=_since(state.served_at, now),
            is_busy=self._is_busy(state),
        )
        if model is None:
            return None
        swap = self.swaps.request_on_demand(model)
        with suppress(QueueUnavailable):  # workers also look at the log
            self.signals.nudge(ControlTopic.MODELS)
        return swap

    def _demands(
        self, absent: list[str], state: WantedModel, now: datetime
    ) -> Iterator[ModelDemand]:
        for model in absent:
            failed_at = _ended_at(state, model, SwapState.ROLLED_BACK)
            if failed_at is not None and _since(failed_at, now) < FAILED_S:
                continue
            oldest = self.views.bound(model, accepted_before=rfc3339(now), limit=1)
            # An embedding model serves beside the others, from the next start of a worker on.
            if oldest and oldest[0].kind == "generation":
                since = max(oldest[0].created_at, _left_at(state, model) or "")
                yield ModelDemand(model=model, waited_s=_since(since, now))

    def _is_busy(self, state: WantedModel) -> bool:
        own = (None, state.served)
        waits = any(
            self.views.waiting(priority).get(model) for priority in Priority for model in own
        )
        return waits or self.models.has_running_jobs()


def _ended_at(state: WantedModel, model: str, end: SwapState) -> str | None:
    """Return when the last swap to a model ended, if it ended so."""
    last = next((swap for swap in reversed(state.swaps) if swap.model == model), None)
    return last.times.get(end) if last is not None and last.state is end else None


def _left_at(state: WantedModel, model: str) -> str | None:
    """Return when another model last replaced a model."""
    for swap in reversed(state.swaps):
        if swap.before == model and swap.model != model and swap.state is SwapState.DONE:
            return swap.times[SwapState.DONE]
    return None


def _since(instant: str, now: datetime) -> float:
    return max(0.0, (now - datetime.fromisoformat(instant)).total_seconds())
