"""Which fault strikes when: a list that a seed decides, the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """What can happen."""

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


#: Those that are a SIGKILL.
KILLS: Final = frozenset({Fault.WORKER, Fault.API, Fault.BROKER, Fault.SUPERVISOR, Fault.ALL})
#: Longest time between a recovery and the next fault, in seconds.
_GAP_S_MAX: Final = 1.5
#: How often a fault strikes before the service has recovered from the one before.
_HASTE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault.

    Attributes:
        number: Its place in the plan, from 1.
        fault: What happens.
        gap_s: Seconds of work before it.
        hasty: It does not wait for the recovery from the one before.
        lasts_s: How long it lasts, where it is not over at once.
        seed: Decides what is left to decide, such as which connections are cut.
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


def make_plan(faults: Sequence[Fault], *, kills: int, others: int, seed: int) -> tuple[Strike, ...]:
    """Return so many kills and so many other faults, evenly of each kind, in random order.

    Args:
        faults: The kinds that may happen.
        kills: How many SIGKILLs.
        others: How many faults that are none.
        seed: Decides everything.
    """
    chance = random.Random(f"plan {seed}")
    dying = [fault for fault in faults if fault in KILLS]
    living = [fault for fault in faults if fault not in KILLS]
    struck = _evenly(dying, kills, chance) + _evenly(living, others, chance)
    chance.shuffle(struck)
    return tuple(
        Strike(
            number=number,
            fault=fault,
            gap_s=chance.uniform(0, _GAP_S_MAX),
            hasty=chance.random() < _HASTE,
            lasts_s=_lasts_s(fault, chance),
            seed=chance.randrange(2**31),
        )
        for number, fault in enumerate(struck, start=1)
    )


def _evenly(faults: Sequence[Fault], count: int, chance: random.Random) -> list[Fault]:
    if not faults:
        return []
    first = chance.randrange(len(faults))
    return [faults[(first + index) % len(faults)] for index in range(count)]


def _lasts_s(fault: Fault, chance: random.Random) -> float:
    """A lock held for more than 10 s outlasts what a writer waits for it."""
    if fault is Fault.LOCK and chance.random() < 0.25:
        return chance.uniform(10.5, 12.0)
    return chance.uniform(0.2, 3.0)
