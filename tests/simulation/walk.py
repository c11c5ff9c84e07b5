"""Many simulated histories in a row, each a function of one seed; faster than Hypothesis."""

from __future__ import annotations

import random
from collections import Counter

from structlog.testing import capture_logs

from tests.simulation.label_moves import LABEL_MOVES
from tests.simulation.moves import MOVES, NIGHT_MOVES, NUMBERS, change_of_mind
from tests.simulation.world import World

#: Moves of one life.
MOVES_MAX = 70
#: Every so many lives have nights; the others are what they were before nights existed.
NIGHTS_EVERY = 4
#: Every so many lives, which are others, have labels and forks.
LABELS_EVERY = 8


class BrokenPromise(AssertionError):
    """A walk went wrong; ``trace`` has its moves."""

    def __init__(self, seed: int, trace: list[str]) -> None:
        super().__init__(f"seed {seed}: " + " ".join(trace))
        self.seed = seed
        self.trace = trace


def walk(seed: int, tally: Counter[str] | None = None) -> World:
    """Live one life.

    Args:
        seed: All that decides about it.
        tally: Where to count what happened.

    Raises:
        BrokenPromise: Caused by what was objected to.
    """
    drawn = random.Random(seed)
    moves = MOVES
    if seed % NIGHTS_EVERY == NIGHTS_EVERY - 1:
        moves = MOVES | NIGHT_MOVES
    elif seed % LABELS_EVERY == LABELS_EVERY // 2:
        moves = MOVES | LABEL_MOVES
    names = list(moves)
    weights = [moves[name].weight for name in names]
    trace: list[str] = []
    world = World()
    with capture_logs():
        try:
            for name in drawn.choices(names, weights, k=drawn.randint(10, MOVES_MAX)):
                number = drawn.randrange(NUMBERS)
                trace.append(f"{name}({number})")
                moves[name].do(world, number)
                world.check()
            number = drawn.randrange(NUMBERS)
            trace.append(f"change_of_mind({number})")
            change_of_mind(world, number)
            trace.append("heal")
            world.heal()
        except BaseException as error:
            raise BrokenPromise(seed, trace) from error
        finally:
            world.close()
    if tally is not None:
        count_world(world, tally)
    return world


def count_world(world: World, tally: Counter[str]) -> None:
    """Count what happened in a world."""
    jobs = world.truth.jobs.values()
    tally["jobs"] += len(jobs)
    tally["events"] += world.log.head().position
    tally["attempts"] += sum(job.attempt for job in jobs)
    tally["jobs of several attempts"] += sum(job.attempt > 1 for job in jobs)
    tally["held jobs"] += world.truth.holds
    tally["jobs after others"] += sum(bool(job.after) for job in jobs)
    tally["changes of all jobs of a label"] += world.truth.bulks_done
    tally["forks"] += sum(job.is_fork for job in jobs)
    tally["missed instants"] += world.nights.missed
    tally["retries"] += sum(job.life for job in jobs)
    tally["crashes"] += world.crashes
    tally["losses of the broker's data"] += world.broker.losses
    tally["readers"] += len(world.truth.readers)
    tally["swaps"] += world.swaps
    tally["answers begun anew"] += sum(len(job.models) > 1 for job in jobs)
    tally["readers of another model"] += sum(one.changed for one in world.truth.readers)
    tally["batches"] += world.follow_ups.batches
    tally["lines of batches"] += sum(job.is_line for job in jobs)
    tally["webhook messages"] += world.follow_ups.deliveries
    tally["port calls"] += world.port_calls
    for job in jobs:
        for end in job.ends:
            tally[end] += 1
    for code, count in world.refusals.items():
        tally[f"refused: {code}"] += count
