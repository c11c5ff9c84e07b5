"""When jobs that wait for a model cause a swap to it. Pure.

Two models must not take turns after each answer: a model stays for a while, and its own work goes
first. No job waits for ever: after a while the model that was wanted longest gets its turn. A wait
counts from when the model was last there, so that a long queue of one model holds no other back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Least seconds for which a model that jobs have caused serves.
RESIDENCE_MIN_S: Final = 60.0
#: Seconds after which a waiting job ends the turn of a model that has work.
WAIT_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandRules:
    """The limits of swaps that jobs cause.

    Attributes:
        residence_min_s: Least seconds for which a model serves.
        wait_max_s: Seconds after which a waiting job ends the turn of a model that has work.
    """

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
        rules: The limits.
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
