"""The wanted model, and the swaps that change it: one stream, ``models``, folded.

A swap goes through the states of ``SwapState`` from the top down:

    requested → draining → saving → restarting → loading → done
                                        │            └→ rolled_back   (or at once, before draining)
    any open state ─→ superseded by the next request

The stream names the model that every worker has to serve. A worker that runs another one drains,
ends and starts again. Pure: times come with the events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from domain.events.model import (
    ModelConfigured,
    ModelLoadLost,
    ModelServed,
    ModelSwapAdvanced,
    ModelSwapRequested,
    ModelSwapRolledBack,
    WantedModelEvent,
)
from domain.values import StreamName, WorkerId

#: The stream of the wanted model.
MODELS_STREAM: Final = StreamName("models")
#: Seconds that running jobs have to finish, where a request names no other.
DRAIN_S: Final = 300.0
#: Workers that may die while they load the wanted model, before the swap rolls back.
LOAD_LOSSES_MAX: Final = 2
#: Swaps that a fold keeps; older ones are in the log only.
SWAPS_KEPT: Final = 100


class SwapState(StrEnum):
    """The phase of a swap."""

    REQUESTED = "requested"
    DRAINING = "draining"
    SAVING = "saving"
    RESTARTING = "restarting"
    LOADING = "loading"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"

    @property
    def is_open(self) -> bool:
        """Whether the swap goes on."""
        return self not in {SwapState.DONE, SwapState.ROLLED_BACK, SwapState.SUPERSEDED}


class SwapReason(StrEnum):
    """What caused a swap."""

    REQUEST = "request"
    CONFIGURED = "configured"
    ON_DEMAND = "on_demand"


_ORDER: Final = tuple(SwapState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One swap.

    Attributes:
        id: Its id.
        model: The wanted model.
        before: The last model that served; ``None`` if none did.
        reason: What caused it.
        drain_s: Seconds that running jobs have to finish.
        version: Version of its request in the stream.
        state: Its phase.
        times: RFC 3339 instants at which it entered its states; of repeated loads the last.
        why: Why it rolled back.
        loading: Workers that have begun to load the model.
        losses: How many of them died.
    """

    id: str
    model: str
    before: str | None
    reason: str
    drain_s: float
    version: int
    state: SwapState = SwapState.REQUESTED
    times: Mapping[SwapState, str] = field(default_factory=dict)
    why: str | None = None
    loading: frozenset[WorkerId] = frozenset()
    losses: int = 0

    @property
    def can_roll_back(self) -> bool:
        """Whether a model is there to return to.

        Of a swap to the same name there is none, once the worker that had it loaded has ended.
        """
        is_refused = self.state is SwapState.REQUESTED
        return self.before is not None and (is_refused or self.before != self.model)

    def enter(self, state: SwapState, at: str) -> Swap:
        """Return the swap in a later state; several workers may report an earlier one again."""
        if not self.state.is_open or _ORDER.index(state) < _ORDER.index(self.state):
            return self
        if state is self.state and state is not SwapState.LOADING:
            return self
        return replace(self, state=state, times={**self.times, state: at})


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """Which model the workers have to serve.

    Attributes:
        version: Of the stream.
        model: Name of the wanted model; ``None`` before the first start.
        since: Version of the event that made it the wanted one. A worker that has read a lower
            number may have to swap.
        served: The last model that was served.
        served_at: RFC 3339 instant since which it is served.
        configured: The configured model and the last explicit choice, by place.
        swaps: The latest swaps, in their order.
    """

    version: int = 0
    model: str | None = None
    since: int = 0
    served: str | None = None
    served_at: str | None = None
    configured: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    swaps: tuple[Swap, ...] = ()

    @property
    def open_swap(self) -> Swap | None:
        """The swap that goes on, if there is one."""
        last = self.swaps[-1] if self.swaps else None
        return last if last is not None and last.state.is_open else None

    @property
    def was_used(self) -> bool:
        """Whether a model was served or asked for; until then the configured one is wanted."""
        return self.served is not None or self.open_swap is not None

    def get(self, swap_id: str) -> Swap | None:
        """Return a swap by its id."""
        return next((swap for swap in self.swaps if swap.id == swap_id), None)

    def must_restart(self, model: str, *, since: int) -> bool:
        """Return whether a worker has to end and start again.

        Args:
            model: What it serves.
            since: ``since`` of the wanted model that it read before its load.
        """
        if self.model is None or self.since <= since:
            return False
        given_up = {SwapState.ROLLED_BACK, SwapState.SUPERSEDED}
        return self.model != model or any(
            swap.model == model and swap.version > since and swap.state not in given_up
            for swap in self.swaps
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """A worker starts with a configured model.

    Attributes:
        place: The data directory of the worker.
        model: Name of the configured model.
        choice: Id of the command that named the model explicitly; empty if none did.
        swap: Id of the swap that may follow.
    """

    place: str
    model: str
    choice: str
    swap: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSwap:
    """Serve another model, or the same one anew."""

    swap: str
    model: str
    reason: str = SwapReason.REQUEST
    drain_s: float = DRAIN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceSwap:
    """A worker enters a phase of the open swap."""

    swap: str
    worker: WorkerId
    phase: SwapState


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLoss:
    """A worker was found to have died."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """The wanted model cannot be served."""

    swap: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordServed:
    """A worker serves a model."""

    worker: WorkerId
    model: str


SwapCommand = Configure | RequestSwap | AdvanceSwap | RecordLoss | RollBack | RecordServed


def decide(state: WantedModel, command: SwapCommand) -> tuple[WantedModelEvent, ...]:
    """Return the events that a command leads to; none where nothing changes."""
    match command:
        case Configure():
            return _configured(state, command)
        case RequestSwap():
            yields = command.reason == SwapReason.ON_DEMAND and state.open_swap is not None
            return () if yields else (_requested(state, command),)
        case AdvanceSwap(swap=swap, worker=worker, phase=phase):
            return _advanced(state, swap, worker, phase)
        case RecordLoss(worker=worker):
            return _lost(state, worker)
        case RollBack(swap=swap, why=why):
            last = state.open_swap
            return _rolled_back(last, why) if last is not None and last.id == swap else ()
        case RecordServed(worker=worker, model=model):
            return _served(state, worker, model)


def _configured(state: WantedModel, command: Configure) -> tuple[WantedModelEvent, ...]:
    known = state.configured.get(command.place)
    if known == (command.model, command.choice):
        return ()
    configured = ModelConfigured(place=command.place, model=command.model, choice=command.choice)
    is_chosen = bool(command.choice) and (known is None or known[1] != command.choice)
    is_changed = known is not None and known[0] != command.model
    # A model that never served is no model to return to: the configured one replaces it.
    if not state.was_used or command.model == state.model or not (is_chosen or is_changed):
        return (configured,)
    request = RequestSwap(
        swap=command.swap, model=command.model, reason=SwapReason.CONFIGURED, drain_s=DRAIN_S
    )
    return configured, _requested(state, request)


def _requested(state: WantedModel, command: RequestSwap) -> ModelSwapRequested:
    return ModelSwapRequested(
        swap=command.swap,
        model=command.model,
        before=state.served,
        reason=command.reason,
        drain_s=command.drain_s,
    )


def _advanced(
    state: WantedModel, swap_id: str, worker: WorkerId, phase: SwapState
) -> tuple[WantedModelEvent, ...]:
    swap = state.open_swap
    if swap is None or swap.id != swap_id:
        return ()
    return (ModelSwapAdvanced(swap=swap_id, worker=worker, phase=phase),)


def _lost(state: WantedModel, worker: WorkerId) -> tuple[WantedModelEvent, ...]:
    swap = state.open_swap
    if swap is None or worker not in swap.loading:
        return ()
    lost = ModelLoadLost(swap=swap.id, worker=worker)
    if swap.losses + 1 < LOAD_LOSSES_MAX:
        return (lost,)
    why = f"the worker died {LOAD_LOSSES_MAX} times while it loaded {swap.model}"
    return (lost, *_rolled_back(swap, why))


def _rolled_back(swap: Swap, why: str) -> tuple[WantedModelEvent, ...]:
    if swap.before is None or not swap.can_roll_back:
        return ()
    return (ModelSwapRolledBack(swap=swap.id, model=swap.model, before=swap.before, reason=why),)


def _served(state: WantedModel, worker: WorkerId, model: str) -> tuple[WantedModelEvent, ...]:
    if model != state.model:
        return ()  # the wanted model changed during the load
    swap = state.open_swap
    if swap is not None and worker in swap.loading:
        return (ModelServed(worker=worker, model=model, swap=swap.id),)
    if swap is None and state.served != model:
        return (ModelServed(worker=worker, model=model),)
    return ()


def evolve(state: WantedModel, event: WantedModelEvent, *, at: str, version: int) -> WantedModel:
    """Return the state after an event.

    Args:
        state: The state before.
        event: The event.
        at: Its RFC 3339 instant.
        version: Its version in the stream.
    """
    after = replace(state, version=version)
    match event:
        case ModelConfigured():
            after = _with_configured(after, event)
        case ModelSwapRequested():
            after = _with_request(after, event, at)
        case ModelSwapAdvanced():
            after = _with_phase(after, event, at)
        case ModelLoadLost():
            after = _with_last(after, lambda swap: _without(swap, event.worker))
        case ModelSwapRolledBack():
            after = _with_last(
                replace(after, model=event.before, since=version),
                lambda swap: replace(swap.enter(SwapState.ROLLED_BACK, at), why=event.reason),
            )
        case ModelServed():
            after = replace(after, served=event.model, served_at=at)
            if event.swap is not None:
                after = _with_last(after, lambda swap: swap.enter(SwapState.DONE, at))
    return after


def _with_configured(state: WantedModel, event: ModelConfigured) -> WantedModel:
    known = {**state.configured, event.place: (event.model, event.choice)}
    state = replace(state, configured=known)
    if state.was_used:
        return state
    return replace(state, model=event.model, since=state.version)


def _with_request(state: WantedModel, event: ModelSwapRequested, at: str) -> WantedModel:
    swap = Swap(
        id=event.swap,
        model=event.model,
        before=event.before,
        reason=event.reason,
        drain_s=event.drain_s,
        version=state.version,
        times={SwapState.REQUESTED: at},
    )
    before = _with_last(state, lambda last: last.enter(SwapState.SUPERSEDED, at)).swaps
    swaps = (*before, swap)[-SWAPS_KEPT:]
    return replace(state, model=event.model, since=state.version, swaps=swaps)


def _with_phase(state: WantedModel, event: ModelSwapAdvanced, at: str) -> WantedModel:
    phase = SwapState(event.phase)

    def enter(swap: Swap) -> Swap:
        if phase is SwapState.LOADING:
            swap = replace(swap, loading=swap.loading | {event.worker})
        return swap.enter(phase, at)

    return _with_last(state, enter)


def _without(swap: Swap, worker: WorkerId) -> Swap:
    return replace(swap, loading=swap.loading - {worker}, losses=swap.losses + 1)


def _with_last(state: WantedModel, change: Callable[[Swap], Swap]) -> WantedModel:
    """Return the state with a change of the last swap; events of no other one are appended."""
    if not state.swaps:
        return state
    return replace(state, swaps=(*state.swaps[:-1], change(state.swaps[-1])))
