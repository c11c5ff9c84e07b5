"""The swap of one worker's model as a state machine, and totals of ended swaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from domain.events.model import (
    ModelConfigured,
    ModelLoadLost,
    ModelServed,
    ModelSwapAdvanced,
    ModelSwapRequested,
    ModelSwapRolledBack,
    WantedModelEvent,
)
from domain.model.wanted_model import (
    DRAIN_S,
    LOAD_LOSSES_MAX,
    SWAPS_KEPT,
    Swap,
    SwapReason,
    SwapState,
    WantedModel,
    WantedModels,
)
from domain.values import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """A worker starts with a configured model.

    Attributes:
        place: The data directory of the worker.
        choice: Id of the command that named the model explicitly; empty if none did.
        swap: Id of the swap that may follow.
    """

    place: str
    model: str
    choice: str
    swap: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSwap:
    """Serve another model, or the same one anew, everywhere or at the worker of a place."""

    swap: str
    model: str
    reason: str = SwapReason.REQUEST
    drain_s: float = DRAIN_S
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLoss:
    """A worker was found to have died."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """The wanted model cannot be served."""

    swap: str
    why: str


_SwapProgress = ModelSwapAdvanced | ModelLoadLost | ModelSwapRolledBack | ModelServed
#: What workers and operators ask for or report; a report is the event that would record it.
SwapCommand = Configure | RequestSwap | ModelSwapAdvanced | RecordLoss | RollBack | ModelServed


def decide(state: WantedModel, command: SwapCommand) -> tuple[WantedModelEvent, ...]:
    """Return the events that a command leads to; none where nothing changes."""
    match command:
        case Configure():
            return _configured(state, command)
        case RequestSwap():
            yields = command.reason == SwapReason.ON_DEMAND and state.open_swap is not None
            return () if yields else (_requested(state, command),)
        case ModelSwapAdvanced():
            last = state.open_swap
            return (command,) if last is not None and last.id == command.swap else ()
        case RecordLoss(worker=worker):
            return _lost(state, worker)
        case RollBack(swap=swap, why=why):
            last = state.open_swap
            return _rolled_back(last, why) if last is not None and last.id == swap else ()
        case ModelServed(worker=worker, model=model):
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
        place=command.place,
    )


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
        at: Its RFC 3339 instant.
    """
    after = replace(state, version=version)
    match event:
        case ModelConfigured():
            after = _with_configured(after, event)
        case ModelSwapRequested():
            after = _with_request(after, event, at)
        case _:
            after = _with_progress(after, event, at) if _is_of_last(after, event) else after
    return after


def evolve_all(
    state: WantedModels, event: WantedModelEvent, *, at: str, version: int
) -> WantedModels:
    """Return the wanted models of all places after an event; see ``evolve``."""
    own = dict(state.own)
    if isinstance(event, ModelSwapRequested) and event.place:
        own[event.place] = evolve(state.at(event.place), event, at=at, version=version)
        return replace(state, version=version, own=own)
    return WantedModels(
        version=version,
        default=evolve(state.default, event, at=at, version=version),
        own={place: evolve(one, event, at=at, version=version) for place, one in own.items()},
    )


def _with_progress(state: WantedModel, event: _SwapProgress, at: str) -> WantedModel:
    """Return the state after an event of its last swap."""
    match event:
        case ModelSwapAdvanced():
            return _with_phase(state, event, at)
        case ModelLoadLost():
            return _with_last(
                state,
                lambda swap: replace(
                    swap, loading=swap.loading - {event.worker}, losses=swap.losses + 1
                ),
            )
        case ModelSwapRolledBack():
            return _with_last(
                replace(state, model=event.before, since=state.version),
                lambda swap: replace(swap.enter(SwapState.ROLLED_BACK, at), why=event.reason),
            )
        case ModelServed():
            after = replace(state, served=event.model, served_at=at)
            if event.swap is None:
                return after
            return _with_last(after, lambda swap: swap.enter(SwapState.DONE, at))


def _is_of_last(state: WantedModel, event: _SwapProgress) -> bool:
    """Return whether an event concerns this wanted model, and not that of another place."""
    if isinstance(event, ModelServed) and event.model != state.model:
        return False
    last = state.swaps[-1].id if state.swaps else None
    return event.swap in {None, last}


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
        place=event.place,
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


def _with_last(state: WantedModel, change: Callable[[Swap], Swap]) -> WantedModel:
    """Return the state with a change of the last swap."""
    if not state.swaps:
        return state
    return replace(state, swaps=(*state.swaps[:-1], change(state.swaps[-1])))


@dataclass(slots=True)
class SwapTotals:
    """Folds the events of the stream ``models`` in their order.

    Attributes:
        ended: Swaps by how they ended.
        done: Model and seconds of each swap that was done since ``take_done``.
    """

    version: int = 0
    ended: dict[SwapState, int] = field(default_factory=dict)
    done: list[tuple[str, float]] = field(default_factory=list)
    _open: dict[str, tuple[ModelSwapRequested, str]] = field(default_factory=dict)

    def fold(self, events: Iterable[tuple[WantedModelEvent, str, int]]) -> None:
        """Add events with the RFC 3339 instants of their records and their versions."""
        for event, at, version in events:
            self.version = version
            match event:
                case ModelSwapRequested(place=place):
                    # A request for all workers supersedes those for one.
                    for superseded in [place] if place else [*self._open]:
                        self._end(superseded, SwapState.SUPERSEDED)
                    self._open[place] = event, at
                case ModelSwapRolledBack(swap=swap):
                    self._end(self._place_of(swap), SwapState.ROLLED_BACK)
                case ModelServed(swap=swap):
                    self._record_done(self._place_of(swap), at)
                case _:
                    pass

    def take_done(self) -> list[tuple[str, float]]:
        """Return model and seconds of the swaps that were done since the call before."""
        done, self.done = self.done, []
        return done

    def _place_of(self, swap: str | None) -> str | None:
        """Return the place of an open swap."""
        return next((place for place, (one, _) in self._open.items() if one.swap == swap), None)

    def _record_done(self, place: str | None, at: str) -> None:
        if place is None:
            return
        request, requested_at = self._open[place]
        taken = datetime.fromisoformat(at) - datetime.fromisoformat(requested_at)
        self.done.append((request.model, max(0.0, taken.total_seconds())))
        self._end(place, SwapState.DONE)

    def _end(self, place: str | None, state: SwapState) -> None:
        if place is not None and self._open.pop(place, None) is not None:
            self.ended[state] = self.ended.get(state, 0) + 1
