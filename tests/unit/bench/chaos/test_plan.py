"""A plan of faults depends on its seed alone and holds what was asked for."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bench.chaos.load import sample_requests
from bench.chaos.plan import KILLS, Fault, make_plan

FAULTS = st.lists(st.sampled_from(Fault), min_size=1, unique=True)
COUNTS = st.integers(0, 50)


@given(faults=FAULTS, kills=COUNTS, others=COUNTS, seed=st.integers())
def test_plan_holds_what_was_asked_for_and_is_the_same_again(
    faults: list[Fault], kills: int, others: int, seed: int
) -> None:
    plan = make_plan(faults, kills=kills, others=others, seed=seed)
    assert plan == make_plan(faults, kills=kills, others=others, seed=seed)
    counts = Counter(planned.fault for planned in plan)
    for kinds, count in ((KILLS & {*faults}, kills), ({*faults} - KILLS, others)):
        own = [counts[fault] for fault in kinds]
        assert sum(own) == (count if kinds else 0)
        assert not own or max(own) - min(own) <= 1
    assert set(counts) <= {*faults}
    assert [planned.number for planned in plan] == [*range(1, len(plan) + 1)]


def test_other_seeds_give_other_plans() -> None:
    plans = {make_plan([*Fault], kills=20, others=20, seed=seed) for seed in range(20)}
    assert len(plans) == 20


@given(seed=st.integers(), size=st.integers(1, 30))
def test_requests_differ_and_half_of_them_are_greedy(seed: int, size: int) -> None:
    request = sample_requests(seed, size)
    assert request == sample_requests(seed, size)
    assert len(set(request)) == size
    assert sum(one.temperature == 0 for one in request) == -(-size // 2)
