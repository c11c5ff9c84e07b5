"""How many swaps have ended, and how long they took, over the whole stream of the wanted model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from domain.events.model import (
    ModelServed,
    ModelSwapRequested,
    ModelSwapRolledBack,
    WantedModelEvent,
)
from domain.model.wanted_model import SwapState


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
