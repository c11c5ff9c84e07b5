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
from domain.model.swap import SwapState


@dataclass(slots=True)
class SwapTotals:
    """Folds the events of the stream ``models`` in their order.

    Attributes:
        version: Of the last event.
        ended: Swaps by how they ended.
        done: Model and seconds of each swap that was done since ``take_done``.
    """

    version: int = 0
    ended: dict[SwapState, int] = field(default_factory=dict)
    done: list[tuple[str, float]] = field(default_factory=list)
    _open: tuple[ModelSwapRequested, str] | None = None

    def fold(self, events: Iterable[tuple[WantedModelEvent, str, int]]) -> None:
        """Add events with the RFC 3339 instants of their records and their versions."""
        for event, at, version in events:
            self.version = version
            match event:
                case ModelSwapRequested():
                    self._end(SwapState.SUPERSEDED)
                    self._open = event, at
                case ModelSwapRolledBack(swap=swap) if self._is_open(swap):
                    self._end(SwapState.ROLLED_BACK)
                case ModelServed(swap=swap) if self._is_open(swap):
                    self._record_done(at)

    def take_done(self) -> list[tuple[str, float]]:
        """Return model and seconds of the swaps that were done since the call before."""
        done, self.done = self.done, []
        return done

    def _is_open(self, swap: str | None) -> bool:
        return self._open is not None and self._open[0].swap == swap

    def _record_done(self, at: str) -> None:
        assert self._open is not None, "only an open swap ends"
        request, requested_at = self._open
        taken = datetime.fromisoformat(at) - datetime.fromisoformat(requested_at)
        self.done.append((request.model, max(0.0, taken.total_seconds())))
        self._end(SwapState.DONE)

    def _end(self, state: SwapState) -> None:
        if self._open is not None:
            self.ended[state] = self.ended.get(state, 0) + 1
            self._open = None
