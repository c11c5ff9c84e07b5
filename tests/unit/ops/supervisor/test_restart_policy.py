"""When a part is started again, and when the service gives up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.exit_codes import FINAL, ExitCode
from ops.supervisor.process_monitor import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    HEALTHY_AFTER_S,
    PLANNED,
    PLANNED_MAX,
    PLANNED_WITHOUT_PAUSE,
    SHORT_LIVES_MAX,
    GiveUp,
    Restart,
    decide,
)


def _pauses_of_short_lives() -> list[float]:
    pauses, short_lives = [], 0
    while isinstance(verdict := decide(-9, lived_s=0.1, short_lives=short_lives), Restart):
        pauses.append(verdict.delay_s)
        short_lives = verdict.short_lives
    return pauses


def test_first_restart_is_at_once_and_the_pauses_double_to_the_longest() -> None:
    assert _pauses_of_short_lives()[:9] == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_short_lives_in_a_row_are_limited() -> None:
    assert len(_pauses_of_short_lives()) == SHORT_LIVES_MAX - 1
    last = decide(1, lived_s=0, short_lives=SHORT_LIVES_MAX - 1)
    assert isinstance(last, GiveUp)
    assert last.exit_code == ExitCode.CRASHED


@pytest.mark.parametrize("code", [ExitCode.DEVICE_FAILED, ExitCode.STUCK])
def test_a_failed_device_is_tried_again_at_once_and_not_for_ever(code: ExitCode) -> None:
    pauses, short_lives = [], 0
    while isinstance(verdict := decide(code, lived_s=0.1, short_lives=short_lives), Restart):
        pauses.append(verdict.delay_s)
        short_lives = verdict.short_lives
    assert pauses == [0.0] * (SHORT_LIVES_MAX - 1)


@pytest.mark.parametrize("code", sorted(PLANNED))
def test_planned_exits_are_no_crashes_and_a_loop_of_them_ends(code: ExitCode) -> None:
    last, pauses = Restart(0.0, 3), []
    while isinstance(
        verdict := decide(code, lived_s=0.1, short_lives=last.short_lives, planned=last.planned),
        Restart,
    ):
        pauses.append(verdict.delay_s)
        assert verdict.short_lives == 3
        last = verdict
    assert pauses[:PLANNED_WITHOUT_PAUSE] == [0.0] * PLANNED_WITHOUT_PAUSE
    assert pauses[PLANNED_WITHOUT_PAUSE:][:3] == [0.2, 0.4, 0.8]
    assert len(pauses) == PLANNED_MAX - 1
    assert verdict.exit_code == ExitCode.CRASHED


def test_a_swap_after_a_crash_keeps_the_count_of_crashes() -> None:
    after_swap = decide(ExitCode.SWAPPED, lived_s=1.0, short_lives=SHORT_LIVES_MAX - 1)
    assert after_swap == Restart(0.0, SHORT_LIVES_MAX - 1, 1)
    assert isinstance(decide(-9, lived_s=1.0, short_lives=SHORT_LIVES_MAX - 1), GiveUp)


@given(returncode=st.integers(-64, 255), short_lives=st.integers(0, SHORT_LIVES_MAX))
def test_a_healthy_life_forgives_all_before_it(returncode: int, short_lives: int) -> None:
    verdict = decide(returncode, lived_s=HEALTHY_AFTER_S, short_lives=short_lives)
    if returncode in FINAL:
        assert isinstance(verdict, GiveUp)
    else:
        assert verdict == Restart(0.0, 0)


@given(
    code=st.sampled_from(sorted(FINAL)),
    lived_s=st.floats(0, 1e6),
    short_lives=st.integers(0, SHORT_LIVES_MAX),
)
def test_unusable_settings_and_logs_are_never_tried_again(
    code: int, lived_s: float, short_lives: int
) -> None:
    verdict = decide(code, lived_s=lived_s, short_lives=short_lives)
    assert isinstance(verdict, GiveUp)
    assert verdict.exit_code == code


@given(
    returncode=st.integers(-64, 255), lived_s=st.floats(0, 1e6), short_lives=st.integers(0, 10**6)
)
def test_pauses_stay_within_their_limits(returncode: int, lived_s: float, short_lives: int) -> None:
    verdict = decide(returncode, lived_s=lived_s, short_lives=short_lives)
    if isinstance(verdict, Restart):
        assert verdict.delay_s == 0 or BACKOFF_FIRST_S <= verdict.delay_s <= BACKOFF_MAX_S
