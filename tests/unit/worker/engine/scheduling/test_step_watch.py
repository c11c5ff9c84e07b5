"""Which step counts as stuck, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import EngineLost
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.time import FakeClock
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.polling import wait_until
from worker.engine.scheduling.step_watch import (
    FIRST_LIMITS,
    FIRST_STEPS,
    SLOWER_MAX,
    TOKENS_MAX,
    StepKind,
    StepSize,
    StepWatch,
)

LIMIT_S = 60.0
DECODE = StepSize(StepKind.DECODE, 4, 4)
PREFILL = StepSize(StepKind.PREFILL, 1, 1000)


def warm(watch: StepWatch, clock: FakeClock, size: StepSize, step_s: float) -> None:
    for _ in range(FIRST_STEPS):
        with watch.step(size):
            clock.advance(step_s)


def checks_until_stuck(watch: StepWatch, *, crowding: float = 1.0, checks: int = 10_000) -> int:
    for n in range(1, checks + 1):
        if watch.check(1.0, crowding=crowding) is not None:
            return n
    return checks + 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def watch(clock: FakeClock) -> StepWatch:
    return StepWatch(LIMIT_S, clock=clock.monotonic)


def test_first_steps_of_a_kind_have_more_time(watch: StepWatch, clock: FakeClock) -> None:
    assert watch.limit_s(DECODE) == FIRST_LIMITS * LIMIT_S
    warm(watch, clock, PREFILL, 1.0)
    assert watch.limit_s(DECODE) == FIRST_LIMITS * LIMIT_S
    warm(watch, clock, DECODE, 0.1)
    assert watch.limit_s(DECODE) == LIMIT_S


def test_limit_grows_with_the_measured_pace_and_the_tokens(
    watch: StepWatch, clock: FakeClock
) -> None:
    warm(watch, clock, PREFILL, 10.0)
    assert watch.limit_s(PREFILL) == pytest.approx(SLOWER_MAX * 10.0, rel=0.1)
    longer = StepSize(StepKind.PREFILL, 1, 10 * TOKENS_MAX)
    assert watch.limit_s(longer) == pytest.approx(SLOWER_MAX * 0.01 * TOKENS_MAX, rel=0.1)


def test_step_is_stuck_after_its_limit_counted_in_checks(
    watch: StepWatch, clock: FakeClock
) -> None:
    warm(watch, clock, DECODE, 0.1)
    with watch.step(DECODE):
        clock.advance(1e6)  # the machine slept
        assert checks_until_stuck(watch) == LIMIT_S + 1
        stuck = watch.check(1.0)
    assert stuck is not None
    assert "decode of 4 rows, 4 tokens" in stuck
    assert watch.check(1.0) is None


def test_steps_that_return_are_never_stuck(watch: StepWatch) -> None:
    for _ in range(int(10 * LIMIT_S)):
        with watch.step(DECODE):
            assert watch.check(1.0) is None


def test_step_that_raises_teaches_no_pace(watch: StepWatch) -> None:
    for _ in range(2 * FIRST_STEPS):
        with pytest.raises(RuntimeError), watch.step(DECODE):
            raise RuntimeError
    assert watch.limit_s(DECODE) == FIRST_LIMITS * LIMIT_S
    assert watch.check(1.0) is None


def test_no_limit_means_no_step_is_stuck() -> None:
    watch = StepWatch(0.0)
    with watch.step(DECODE):
        assert checks_until_stuck(watch) > 10_000


@given(crowding=st.floats(0, 50))
def test_crowded_machine_gives_a_step_more_time(crowding: float) -> None:
    clock = FakeClock()
    watch = StepWatch(LIMIT_S, clock=clock.monotonic)
    warm(watch, clock, DECODE, 0.1)
    with watch.step(DECODE):
        checks = checks_until_stuck(watch, crowding=crowding)
    assert checks == pytest.approx(LIMIT_S * max(1.0, crowding), abs=2)


def test_abandoned_step_fails_its_generations_and_frees_those_that_wait() -> None:
    engine = FakeEngine(CollectingSink(), {"long": "abc" * 9}, max_batch_size=1)
    engine.pause()
    handles = [submit(engine, f"job-{n}", ask("long")) for n in range(2)]
    wait_until(lambda: engine.runner.running == 1)
    engine.abandon("a step did not return")
    ends = [finished(handle).failure for handle in handles]
    assert [one.error for one in ends if one] == ["engine_lost", "draining"]
    with pytest.raises(EngineLost):
        submit(engine, "job-late", ask("long"))
    engine.resume()
    engine.close(0)
