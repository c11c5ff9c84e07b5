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
from tests.simulation.planted import PLANTED
from tests.simulation.walk import BrokenPromise, walk

LIVES = 150
EXAMPLES = 20
RULES = 25


def test_no_life_under_faults_breaks_a_promise() -> None:
    tally: Counter[str] = Counter()
    for seed in range(LIVES):
        walk(seed, tally)
    # That all of it was really met with.
    met = ("JobCompleted", "JobFailed", "JobCancelled", "JobExpired", "jobs of several attempts")
    assert all(tally[what] >= 10 for what in (*met, "retries", "crashes", "readers", "swaps")), (
        tally
    )
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
    first, second = walk(7).log.head(), walk(7).log.head()
    assert first == second


def test_planted_bug_is_found_and_its_seed_is_printed() -> None:
    with PLANTED["idempotency keys are ignored"](), pytest.raises(BrokenPromise) as broken:
        _live(50)
    assert f"seed {broken.value.seed}" in str(broken.value)


def _live(lives: int) -> None:
    for seed in range(lives):
        walk(seed)
