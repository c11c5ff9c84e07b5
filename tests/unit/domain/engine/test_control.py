"""The stream of changes by operators: decided, folded, limited."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine.control import (
    ADMISSION_AFTER,
    BATCH_SIZE_MAX,
    BATCH_WINDOW_MS_MAX,
    GAP_MS_MAX,
    AdmissionState,
    EngineControl,
    EngineValues,
    decide,
    evolve,
    in_force,
)
from domain.errors import InvalidRequest
from domain.events.worker import (
    AdmissionPaused,
    AdmissionResumed,
    DrainStarted,
    EngineEvent,
    EngineTuned,
)
from tests.support.builders.job_events import recorded_at

SETTINGS = EngineValues(batch_window_ms=10, max_batch_size=8, gap_max_ms=100)
AT = "2026-01-01T00:00:00.000000Z"
TUNINGS = st.builds(
    EngineTuned,
    batch_window_ms=st.none() | st.floats(0, 1000),
    max_batch_size=st.none() | st.integers(1, 256),
    gap_max_ms=st.none() | st.floats(0, 60_000),
)
_ADMISSIONS = (AdmissionPaused(), DrainStarted(), AdmissionResumed())
PROPOSALS = st.lists(TUNINGS | st.sampled_from(_ADMISSIONS), max_size=12)


def _evolved(control: EngineControl, event: EngineEvent, at_s: float = 0) -> EngineControl:
    (recorded,) = recorded_at((at_s, event))
    return replace(evolve(control, recorded), version=control.version + 1)


def _after(proposals: list[EngineEvent]) -> EngineControl:
    control = EngineControl()
    for proposal in proposals:
        for event in decide(control, proposal):
            control = _evolved(control, event)
    return control


def test_value_that_is_not_tuned_is_that_of_the_settings() -> None:
    assert in_force(EngineTuned(), SETTINGS) == SETTINGS
    assert in_force(EngineTuned(max_batch_size=2, gap_max_ms=0), SETTINGS) == EngineValues(
        batch_window_ms=10, max_batch_size=2, gap_max_ms=0
    )


@given(PROPOSALS)
def test_last_proposal_of_each_kind_holds(proposals: list[EngineEvent]) -> None:
    control = _after(proposals)
    tunings = [one for one in proposals if isinstance(one, EngineTuned)]
    states = [ADMISSION_AFTER[type(one).__name__] for one in proposals if one not in tunings]
    assert control.tuned == (tunings[-1] if tunings else EngineTuned())
    assert control.admission is (states[-1] if states else AdmissionState.OPEN)
    assert decide(control, control.tuned) == ()
    for proposal in _ADMISSIONS:
        is_new = ADMISSION_AFTER[type(proposal).__name__] is not control.admission
        assert decide(control, proposal) == ((proposal,) if is_new else ())


def test_admission_names_its_reason_until_it_is_resumed() -> None:
    pause, drain, resume = AdmissionPaused(reason="backup"), DrainStarted(), AdmissionResumed()
    paused = _after([pause])
    assert (paused.reason, paused.since) == ("backup", AT)
    assert decide(paused, AdmissionPaused(reason="another")) == ()
    assert _after([pause, drain, resume]).reason is None
    draining = _after([pause, DrainStarted(reason="update")])
    assert (draining.reason, draining.since) == ("update", AT)
    later = _evolved(draining, resume, 36).since
    assert later is not None
    assert later > AT


def test_limits_themselves_are_allowed() -> None:
    least = EngineTuned(batch_window_ms=0, max_batch_size=1, gap_max_ms=0)
    most = EngineTuned(
        batch_window_ms=BATCH_WINDOW_MS_MAX, max_batch_size=BATCH_SIZE_MAX, gap_max_ms=GAP_MS_MAX
    )
    for tuning in (least, most):
        assert _after([tuning]).tuned == tuning
        assert in_force(tuning, SETTINGS).batch_window_ms == tuning.batch_window_ms


@pytest.mark.parametrize(
    ("tuning", "field"),
    [
        (EngineTuned(batch_window_ms=-0.1), "batch_window_ms"),
        (EngineTuned(batch_window_ms=1000.1), "batch_window_ms"),
        (EngineTuned(batch_window_ms=float("nan")), "batch_window_ms"),
        (EngineTuned(max_batch_size=0), "max_batch_size"),
        (EngineTuned(max_batch_size=257), "max_batch_size"),
        (EngineTuned(gap_max_ms=-1), "gap_max_ms"),
        (EngineTuned(gap_max_ms=60_001), "gap_max_ms"),
    ],
)
def test_value_out_of_its_limits_is_refused(tuning: EngineTuned, field: str) -> None:
    with pytest.raises(InvalidRequest, match="must be from") as caught:
        decide(EngineControl(), tuning)
    assert caught.value.field == field
