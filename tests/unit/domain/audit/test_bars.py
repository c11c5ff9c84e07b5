from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given

from domain.audit.timeline import BarKind, bars_of, build_timeline
from domain.events.job import AttemptFailed, JobCancelled, JobEvent, JobFailed, JobRetried
from domain.values import Timings, Usage
from tests.support.builders.job_events import completed, recorded_at, started, submitted
from tests.support.builders.job_histories import histories


def _bars(*events: tuple[float, JobEvent]) -> list[tuple[str, int, float, float | None]]:
    bars = bars_of(build_timeline(recorded_at(*events)))
    return [(bar.kind.value, bar.attempt, bar.from_ms, bar.to_ms) for bar in bars]


def test_a_plain_job_was_queued_restored_prefilled_and_decoded() -> None:
    timings = Timings(queued_ms=500, prefill_ms=40, first_token_ms=60, decode_ms=1000)
    done = replace(completed(), timings=timings)
    assert _bars((0, submitted()), (0.5, started()), (2, done)) == [
        ("queued", 1, 0, 500),
        ("restore", 1, 500, 520),
        ("prefill", 1, 520, 560),
        ("decode", 1, 560, 2000),
    ]


def test_a_death_is_a_lost_bar_and_the_next_attempt_waits() -> None:
    second = replace(started(2), worker=started(1).worker)
    assert _bars((0, submitted()), (1, started(1)), (5, second)) == [
        ("queued", 1, 0, 1000),
        ("lost", 1, 1000, 5000),
        ("run", 2, 5000, None),
    ]


def test_a_retry_waits_again_and_an_end_without_an_answer_has_no_phases() -> None:
    failed = AttemptFailed(attempt=1, error="engine_failure", message="it broke", retryable=True)
    assert _bars(
        (0, submitted()),
        (1, started()),
        (3, failed),
        (3, JobFailed(error="engine_failure", message="it broke")),
        (4, JobRetried(reason="operator")),
        (6, started(2)),
        (7, JobCancelled(attempt=2, usage=Usage())),
    ) == [
        ("queued", 1, 0, 1000),
        ("run", 1, 1000, 3000),
        ("queued", 2, 4000, 6000),
        ("run", 2, 6000, 7000),
    ]


def test_a_job_that_waits_has_an_open_bar() -> None:
    assert _bars((0, submitted())) == [("queued", 1, 0, None)]


@given(histories())
def test_bars_never_overlap_and_only_the_last_is_open(life: tuple[JobEvent, ...]) -> None:
    timeline = build_timeline(recorded_at(*enumerate(life)))
    bars = bars_of(timeline)
    for before, after in pairwise(bars):
        assert before.to_ms is not None
        assert before.from_ms < before.to_ms <= after.from_ms
    assert any(bar.to_ms is None for bar in bars) == (not timeline.ended)
    assert all(bar.attempt >= 1 for bar in bars)
    assert {bar.kind for bar in bars} <= set(BarKind)
