"""Buckets: how much passes, and how exactly the rest is told to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.access.limits import NAMES_MAX, NS_PER_S, KeyJobs, Rate
from domain.errors import RateLimited
from domain.values import Owner
from tests.support.builders.job_events import submitted


class HandClock:
    def __init__(self) -> None:
        self.now_ns = 12_345

    def __call__(self) -> int:
        return self.now_ns


@given(st.integers(1, 300), st.lists(st.integers(0, 20 * NS_PER_S), max_size=100))
def test_no_minute_lets_more_through_than_a_burst_and_its_refill(
    per_minute: int, waits_ns: list[int]
) -> None:
    clock = HandClock()
    rate = Rate(per_minute, whose="key", clock_ns=clock)
    passed: list[int] = []
    for wait_ns in waits_ns:
        clock.now_ns += wait_ns
        for _ in range(3):
            try:
                rate.take("a")
            except RateLimited:
                continue
            passed.append(clock.now_ns)
    for start in passed:
        within = [at for at in passed if start <= at < start + 60 * NS_PER_S]
        assert len(within) <= 2 * per_minute
    # Over any stretch: the burst, and what flowed in meanwhile.
    if passed:
        span_ns = passed[-1] - passed[0]
        assert len(passed) <= per_minute + span_ns * per_minute // (60 * NS_PER_S) + 1


@given(st.integers(1, 5000), st.integers(0, 70 * NS_PER_S))
def test_after_the_wait_it_told_there_is_a_token_and_a_second_before_there_is_none(
    per_minute: int, wait_ns: int
) -> None:
    clock = HandClock()
    rate = Rate(per_minute, whose="key", clock_ns=clock)
    for _ in range(per_minute):
        rate.take("a")
    clock.now_ns += wait_ns
    try:
        rate.take("a")
    except RateLimited as error:
        clock.now_ns += (error.retry_after_s - 1) * NS_PER_S
        with pytest.raises(RateLimited):
            rate.take("a")
        clock.now_ns += NS_PER_S
        rate.take("a")


def test_a_refusal_costs_nothing() -> None:
    clock = HandClock()
    rate = Rate(60, whose="key", clock_ns=clock)
    for _ in range(60):
        rate.take("a")
    for _ in range(1000):
        with pytest.raises(RateLimited):
            rate.take("a")
    clock.now_ns += NS_PER_S
    rate.take("a")


def test_names_do_not_pile_up() -> None:
    clock = HandClock()
    rate = Rate(1, whose="agent", clock_ns=clock)
    for number in range(NAMES_MAX + 100):
        rate.take(str(number))
    assert len(rate) == NAMES_MAX
    with pytest.raises(RateLimited):
        rate.take(str(NAMES_MAX + 99))
    clock.now_ns += 60 * NS_PER_S
    rate.take("one more")
    assert len(rate) == 1


def test_without_a_limit_nothing_is_kept() -> None:
    rate = Rate(None, whose="key")
    for _ in range(100):
        rate.take("a")
    assert len(rate) == 0


def test_a_key_with_enough_open_jobs_is_refused_and_others_are_not() -> None:
    def admit(owner: str | None, at_once: int | None = 2) -> None:
        jobs = KeyJobs(open_jobs={"mine": 2, "other": 1}.__getitem__, at_once=at_once)
        jobs.admit([replace(submitted(), owner=Owner(owner) if owner else None)])

    with pytest.raises(RateLimited, match="this key may have 2 jobs open at once"):
        admit("mine")
    admit("other")
    admit(None)
    admit("mine", at_once=None)
