"""The state of the wanted model: which model the workers have to serve, and its swaps.

A swap goes through the states of ``SwapState`` from the top down:

    requested → draining → saving → restarting → loading → done
                                        │            └→ rolled_back   (or at once, before draining)
    any open state ─→ superseded by the next request
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

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
        before: The last model that served; ``None`` if none did.
        drain_s: Seconds that running jobs have to finish.
        version: Version of its request in the stream.
        place: The data directory of the only worker that is meant; empty for all workers.
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
    place: str = ""
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
    """Which model the workers have to serve, or the one worker of a place.

    Attributes:
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
class WantedModels:
    """The wanted model of each worker.

    A request for all workers counts for every place; a request for one counts there until the next
    request for all.

    Attributes:
        default: What workers without a request of their own have to serve.
        own: What the worker of a place has to serve, by place.
    """

    version: int = 0
    default: WantedModel = WantedModel()
    own: Mapping[str, WantedModel] = field(default_factory=dict)

    def at(self, place: str) -> WantedModel:
        """Return the wanted model of the worker of a place; an empty place means the default."""
        return self.own.get(place, self.default)

    @property
    def open_swap(self) -> Swap | None:
        """A swap that goes on, first one of all workers."""
        if self.default.open_swap is not None:
            return self.default.open_swap
        swaps = (wanted.open_swap for wanted in self.own.values())
        return next((swap for swap in swaps if swap is not None and swap.place), None)

    def get(self, swap_id: str) -> Swap | None:
        """Return a swap by its id."""
        found = (wanted.get(swap_id) for wanted in (self.default, *self.own.values()))
        return next((swap for swap in found if swap is not None), None)
