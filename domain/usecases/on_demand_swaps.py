"""Requests the swaps that waiting jobs cause, where ``models.swap`` is ``on_demand``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from domain.errors import QueueUnavailable
from domain.job.listing import JobViews
from domain.job.ports import ControlSignals, ControlTopic
from domain.model.on_demand import ModelDemand, OnDemandRules, next_model
from domain.model.presence import LoadedModels
from domain.model.wanted_model import (
    Swap,
    SwapState,
    WantedModel,
)
from domain.ports import Clock
from domain.usecases.model_swaps import ModelSwaps
from domain.values import Priority, rfc3339

#: Seconds for which a model that could not be loaded is not tried again.
FAILED_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandSwaps:
    """Swaps to models that jobs wait for; one per process.

    Attributes:
        views: Lists the jobs.
        models: The models of the live workers.
        swaps: The wanted model.
        signals: Nudge the workers.
        clock: The present.
        rules: The limits.
    """

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
