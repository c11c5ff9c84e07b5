"""The stream of changes by operators: decided, folded, limited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine.control import (
    BATCH_SIZE_MAX,
    BATCH_WINDOW_MS_MAX,
    GAP_MS_MAX,
    AdmissionState,
    EngineCommand,
    EngineControl,
    EngineTuning,
    EngineValues,
    SetAdmission,
    Tune,
    decide,
    evolve,
)
from domain.errors import InvalidRequest
from domain.events.worker import AdmissionPaused, AdmissionResumed, DrainStarted, EngineTuned

SETTINGS = EngineValues(batch_window_ms=10, max_batch_size=8, gap_max_ms=100)
AT = "2026-11-22T10:00:00.000000Z"
TUNINGS = st.builds(
    EngineTuning,
    batch_window_ms=st.none() | st.floats(0, 1000),
    max_batch_size=st.none() | st.integers(1, 256),
    gap_max_ms=st.none() | st.floats(0, 60_000),
)
COMMANDS = st.lists(
    st.builds(Tune, tuning=TUNINGS)
    | st.builds(SetAdmission, admission=st.sampled_from(AdmissionState), reason=st.none()),
    max_size=12,
)


def _after(commands: list[EngineCommand]) -> EngineControl:
    control = EngineControl()
    for command in commands:
        events = decide(control, command)
        for event in events:
            control = evolve(control, event, at=AT, version=control.version + 1)
    return control


def test_value_that_is_not_tuned_is_that_of_the_settings() -> None:
    assert EngineTuning().over(SETTINGS) == SETTINGS
    assert EngineTuning(max_batch_size=2, gap_max_ms=0).over(SETTINGS) == EngineValues(
        batch_window_ms=10, max_batch_size=2, gap_max_ms=0
    )


@given(COMMANDS)
def test_last_command_of_each_kind_holds(commands: list[EngineCommand]) -> None:
    control = _after(commands)
    tunings = [one.tuning for one in commands if isinstance(one, Tune)]
    states = [one.admission for one in commands if isinstance(one, SetAdmission)]
    assert control.tuning == (tunings[-1] if tunings else EngineTuning())
    assert control.admission is (states[-1] if states else AdmissionState.OPEN)
    assert decide(control, Tune(tuning=control.tuning)) == ()
    assert decide(control, SetAdmission(admission=control.admission)) == ()


def test_admission_names_its_reason_until_it_is_resumed() -> None:
    pause = SetAdmission(admission=AdmissionState.PAUSED, reason="backup")
    assert decide(EngineControl(), pause) == (AdmissionPaused(reason="backup"),)
    paused = _after([pause])
    assert (paused.reason, paused.since) == ("backup", AT)
    drain = SetAdmission(admission=AdmissionState.DRAINING, reason="update")
    assert decide(paused, drain) == (DrainStarted(reason="update"),)
    resume = SetAdmission(admission=AdmissionState.OPEN)
    assert decide(_after([pause, drain]), resume) == (AdmissionResumed(),)
    assert _after([pause, drain, resume]).reason is None
    draining = _after([pause, drain])
    assert (draining.reason, draining.since) == ("update", AT)
    later = "2026-11-22T11:00:00.000000Z"
    assert evolve(draining, AdmissionResumed(), at=later, version=9).since == later


def test_limits_themselves_are_allowed() -> None:
    least = EngineTuning(batch_window_ms=0, max_batch_size=1, gap_max_ms=0)
    most = EngineTuning(
        batch_window_ms=BATCH_WINDOW_MS_MAX, max_batch_size=BATCH_SIZE_MAX, gap_max_ms=GAP_MS_MAX
    )
    for tuning in (least, most):
        assert _after([Tune(tuning=tuning)]).tuning == tuning
        assert tuning.over(SETTINGS).batch_window_ms == tuning.batch_window_ms


@pytest.mark.parametrize(
    ("tuning", "field"),
    [
        (EngineTuning(batch_window_ms=-0.1), "batch_window_ms"),
        (EngineTuning(batch_window_ms=1000.1), "batch_window_ms"),
        (EngineTuning(batch_window_ms=float("nan")), "batch_window_ms"),
        (EngineTuning(max_batch_size=0), "max_batch_size"),
        (EngineTuning(max_batch_size=257), "max_batch_size"),
        (EngineTuning(gap_max_ms=-1), "gap_max_ms"),
        (EngineTuning(gap_max_ms=60_001), "gap_max_ms"),
    ],
)
def test_value_out_of_its_limits_is_refused(tuning: EngineTuning, field: str) -> None:
    with pytest.raises(InvalidRequest, match="must be from") as caught:
        decide(EngineControl(), Tune(tuning=tuning))
    assert caught.value.field == field


def test_events_hold_all_tuned_values() -> None:
    tuned = EngineTuning(batch_window_ms=50)
    assert decide(_after([Tune(tuning=EngineTuning(max_batch_size=2))]), Tune(tuning=tuned)) == (
        EngineTuned(batch_window_ms=50, max_batch_size=None, gap_max_ms=None),
    )
