"""When jobs that wait for a model cause a swap."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from domain.model.swaps import ModelDemand, OnDemandRules, next_model

RULES = OnDemandRules(residence_min_s=60, wait_max_s=300)
NIGHT = ModelDemand(model="night", waited_s=10)

#: Seconds of a job and of a swap in the simulation.
JOB_S, SWAP_S = 5, 7


@pytest.mark.parametrize(
    ("served_s", "is_busy", "waited_s", "swaps"),
    [
        (59, False, 1000, False),
        (60, False, 0, True),
        (60, True, 299, False),
        (60, True, 300, True),
    ],
)
def test_a_model_stays_for_a_while_and_then_as_long_as_it_has_work(
    served_s: float,
    is_busy: bool,  # noqa: FBT001 - a parameter of the test
    waited_s: float,
    swaps: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    demand = ModelDemand(model="night", waited_s=waited_s)
    model = next_model(RULES, [demand], served_s=served_s, is_busy=is_busy)
    assert model == ("night" if swaps else None)


def test_the_model_that_was_wanted_longest_is_next() -> None:
    other = ModelDemand(model="other", waited_s=11)
    assert next_model(RULES, [NIGHT, other], served_s=99, is_busy=False) == "other"
    assert next_model(RULES, [], served_s=99, is_busy=False) is None


class Machine:
    """One worker, one job at a time, time in whole seconds."""

    def __init__(self, rules: OnDemandRules, arrivals: list[tuple[int, int]], models: int) -> None:
        self._rules = rules
        self._arrivals = sorted(arrivals)
        self._models = models
        self._queues: dict[int, list[int]] = {model: [] for model in range(models)}
        self._left_at = dict.fromkeys(range(models), 0)
        self.swaps_at: list[int] = []
        self.longest_wait_s = 0

    def run(self) -> None:
        loaded, served_at, busy_until, now = 0, 0, 0, 0
        while self._arrivals or any(self._queues.values()):
            while self._arrivals and self._arrivals[0][0] <= now:
                at, model = self._arrivals.pop(0)
                self._queues[model].append(at)
            target = self._next(loaded, now, served_at, is_busy=now < busy_until)
            if target is not None:
                self.swaps_at.append(now)
                now = max(now, busy_until) + SWAP_S  # the running job ends first
                waited_s = now - max(self._queues[target][0], self._left_at[target])
                self.longest_wait_s = max(self.longest_wait_s, waited_s)
                self._left_at[loaded] = now
                loaded, served_at, busy_until = target, now, now
            if now >= busy_until and self._queues[loaded]:
                self._queues[loaded].pop(0)
                busy_until = now + JOB_S
            now += 1

    def _next(self, loaded: int, now: int, served_at: int, *, is_busy: bool) -> int | None:
        demands = [
            ModelDemand(model=str(model), waited_s=now - max(jobs[0], self._left_at[model]))
            for model, jobs in self._queues.items()
            if jobs and model != loaded
        ]
        has_work = is_busy or bool(self._queues[loaded])
        model = next_model(self._rules, demands, served_s=now - served_at, is_busy=has_work)
        return None if model is None else int(model)


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), max_size=60),
    residence_s=st.integers(0, 60),
    wait_s=st.integers(1, 120),
)
def test_models_do_not_thrash_and_no_job_starves(
    arrivals: list[tuple[int, int]], residence_s: int, wait_s: int
) -> None:
    rules = OnDemandRules(residence_min_s=residence_s, wait_max_s=wait_s)
    machine = Machine(rules, arrivals, models=4)
    machine.run()
    pauses = [b - a for a, b in zip(machine.swaps_at, machine.swaps_at[1:], strict=False)]
    assert all(pause >= residence_s + SWAP_S for pause in pauses)
    turn_s = residence_s + JOB_S + SWAP_S
    # Each of the other models has at most one turn once the job has waited long enough.
    assert machine.longest_wait_s <= wait_s + 4 * (turn_s + 1)
