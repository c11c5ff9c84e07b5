"""The plan of faults: a list that a seed determines, the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """The kinds of fault."""

    WORKER = "worker"
    API = "api"
    BROKER = "broker"
    SUPERVISOR = "supervisor"
    ALL = "all"
    FREEZE = "freeze"
    FLUSH = "flush"
    CUT = "cut"
    LOCK = "lock"
    DISK = "disk"
    STOP = "stop"
    LOSS = "loss"
    SLOW = "slow"
    MEMORY = "memory"
    SWAP = "swap"


#: The kinds that are a SIGKILL.
KILLS: Final = frozenset({Fault.WORKER, Fault.API, Fault.BROKER, Fault.SUPERVISOR, Fault.ALL})
#: Longest pause between a recovery and the next fault, in seconds.
_GAP_S_MAX: Final = 1.5
#: Share of faults that come before the recovery from the previous one.
_HASTE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of the plan.

    Attributes:
        number: Its place in the plan, from 1.
        fault: Its kind.
        gap_s: Seconds of load before it.
        hasty: Whether it comes before the recovery from the previous fault.
        lasts_s: Its duration in seconds, for kinds with a duration.
        seed: Determines its details, such as which connections are cut.
    """

    number: int
    fault: Fault
    gap_s: float
    hasty: bool
    lasts_s: float
    seed: int

    @property
    def is_kill(self) -> bool:
        """Whether it is a SIGKILL."""
        return self.fault in KILLS


def make_plan(
    faults: Sequence[Fault], *, kills: int, others: int, seed: int
) -> tuple[PlannedFault, ...]:
    """Return a plan with equal shares of each kind, in random order.

    Args:
        faults: The kinds to use.
        kills: Number of SIGKILLs.
        others: Number of other faults.
        seed: Determines the plan.
    """
    rng = random.Random(f"plan {seed}")
    dying = [fault for fault in faults if fault in KILLS]
    living = [fault for fault in faults if fault not in KILLS]
    drawn = _evenly(dying, kills, rng) + _evenly(living, others, rng)
    rng.shuffle(drawn)
    return tuple(
        PlannedFault(
            number=number,
            fault=fault,
            gap_s=rng.uniform(0, _GAP_S_MAX),
            hasty=rng.random() < _HASTE,
            lasts_s=_lasts_s(fault, rng),
            seed=rng.randrange(2**31),
        )
        for number, fault in enumerate(drawn, start=1)
    )


def _evenly(faults: Sequence[Fault], count: int, rng: random.Random) -> list[Fault]:
    if not faults:
        return []
    first = rng.randrange(len(faults))
    return [faults[(first + index) % len(faults)] for index in range(count)]


def _lasts_s(fault: Fault, rng: random.Random) -> float:
    """Return the duration; some locks outlast the 10 s that a writer waits for the log."""
    if fault is Fault.LOCK and rng.random() < 0.25:
        return rng.uniform(10.5, 12.0)
    return rng.uniform(0.2, 3.0)
