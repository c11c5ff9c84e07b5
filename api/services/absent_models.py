"""Composes what happens to jobs whose model no worker has."""

from __future__ import annotations

from collections.abc import Callable

from api.services.ports import ApiPorts
from domain.model.on_demand import OnDemandRules
from domain.model.wanted_model import DRAIN_S
from domain.usecases.jobs.stranded import ABSENT_S, StrandedJobs
from domain.usecases.on_demand_swaps import OnDemandSwaps


def absent_models(
    ports: ApiPorts, *, absent_wait_max_s: float, on_demand: OnDemandRules | None
) -> Callable[[], None]:
    """Return the action to repeat: swap to a model that is due, and end stranded jobs.

    Args:
        ports: The adapters.
        absent_wait_max_s: Seconds since its acceptance after which a waiting job expires.
        on_demand: Limits of the swaps that jobs cause; ``None`` if jobs cause none.
    """
    absent_s = ABSENT_S
    if on_demand is not None:  # time for another model's turn, and for two drains
        absent_s += on_demand.wait_max_s + on_demand.residence_min_s + 2 * DRAIN_S
    stranded = StrandedJobs(
        views=ports.views,
        models=ports.models,
        cancellation=ports.cancellation,
        clock=ports.clock,
        absent_wait_max_s=absent_wait_max_s,
        absent_s=absent_s,
        is_registered=lambda model: ports.registry().get(model) is not None,
    )

    def end_stranded() -> None:
        stranded.end_stranded()

    if on_demand is None:
        return end_stranded
    swaps = OnDemandSwaps(
        views=ports.views,
        models=ports.models,
        swaps=ports.swaps,
        signals=ports.cancellation.signals,
        clock=ports.clock,
        rules=on_demand,
    )

    def swap_and_end_stranded() -> None:
        swaps.swap_if_due()
        stranded.end_stranded()

    return swap_and_end_stranded
