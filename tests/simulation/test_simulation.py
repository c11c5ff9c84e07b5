"""A short run of the simulator; ``python -m tests.simulation`` makes long ones.

Every run examines the same interleavings, so that an unrelated change never meets a new one. Long
runs search for new ones.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.machine import Simulation
from tests.simulation.planted import PLANTED, PLANTED_IN_WEEKS
from tests.simulation.walk import BrokenPromise, walk
from tests.simulation.week import live_week
from tests.support.day_and_night import by_day

LIVES = by_day(100, night=200)
#: Planted bugs, each with a life that finds it; ``--planted`` prints the lives after a change.
FOUND = {
    "a worker that lives counts as dead": 122,
    "an outage of the broker counts as a failure": 3208,
    "a unique job is looked up before the append only": 62,
    "a job starts after its time": 308,
    "what a dead worker held stays in its hand": 74,
    "a nudge is believed without the log": 5,
    "new prompts pass what was begun": 29,
    "a batch ends with open lines": 6,
    "lines of a round that a crash broke are forgotten": 101,
    "a refused line can be retried": 41,
    "the place in the log is stored before the messages": 3,
    "a refused message counts as delivered": 321,
    "the claim of a dead sender is never given up": 1406,
    "held jobs are released at once": 3,
    "one ended job is enough": 115,
    "prompts keep their places": 27,
    "a name is looked up before the append only": 415,
    "missed instants are left out": 27,
    "the end of a held job is left to its process": 71,
    "a cancellation of many leaves held jobs out": 172,
    "a dry run changes its jobs": 244,
    "an offset begins the answer again": 192,
    "an offset forgets the end": 77,
    "a fork begins anew": 20,
    "a fork counts inherited tokens as published": 20,
}
#: Planted bugs that need the times of a week, each with one that finds it.
FOUND_IN_WEEKS = {
    "what came due in a sleep is overlooked": 0,
    "a schedule does not catch up": 0,
    "a delivery counts as acknowledged": 4,
    "a scheduled job is recorded after its append": 5,
}
WEEKS = by_day(5, night=10)
#: What the short run must meet often, beside ends.
_MET = ("retries", "crashes", "readers", "swaps", "batches", "webhook messages", "held jobs")
EXAMPLES = 20
RULES = 25


def test_no_life_under_faults_breaks_a_promise() -> None:
    tally: Counter[str] = Counter()
    for seed in range(LIVES):
        walk(seed, tally)
    # That all of it was really met with.
    met = ("JobCompleted", "JobFailed", "JobCancelled", "JobExpired", "jobs of several attempts")
    assert all(tally[what] >= 10 for what in (*met, *_MET)), tally
    assert all(tally[what] for what in ("answers begun anew", "readers of another model")), tally


def test_no_interleaving_that_hypothesis_thinks_of_breaks_a_promise() -> None:
    run_state_machine_as_test(
        Simulation,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=RULES,
            derandomize=True,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_life_is_a_function_of_its_seed() -> None:
    # The trace ids of lines are drawn anew, so the hashes differ.
    first, second = (
        [(event.stream, event.type) for event in walk(7).log.read_all(limit=10**6)]
        for _ in range(2)
    )
    assert first == second


def test_planted_bug_is_found_and_its_seed_is_printed() -> None:
    with PLANTED["idempotency keys are ignored"](), pytest.raises(BrokenPromise) as broken:
        _live(50)
    assert f"seed {broken.value.seed}" in str(broken.value)


@pytest.mark.parametrize(("name", "seed"), FOUND.items())
def test_planted_bug_is_found_in_its_life(name: str, seed: int) -> None:
    walk(seed)
    with PLANTED[name](), pytest.raises(BrokenPromise):
        walk(seed)


def test_no_week_breaks_a_promise() -> None:
    tally: Counter[str] = Counter()
    for seed in range(WEEKS):
        live_week(seed, tally)
    met = ("sleeps", "power cuts", "corrections of the clock", "held jobs", "jobs after others")
    assert all(tally[what] >= 10 for what in (*met, "missed instants", "swaps", "batches")), tally


@pytest.mark.parametrize(("name", "seed"), FOUND_IN_WEEKS.items())
def test_planted_bug_is_found_in_its_week(name: str, seed: int) -> None:
    live_week(seed)
    with PLANTED_IN_WEEKS[name](), pytest.raises(BrokenPromise):
        live_week(seed)


def _live(lives: int) -> None:
    for seed in range(lives):
        walk(seed)
