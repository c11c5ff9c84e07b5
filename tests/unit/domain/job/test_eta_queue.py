"""Forecasts of jobs that run, wait in an engine, were called, or are held back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from domain.engine.workers import TurnState
from domain.job.eta import (
    RETRY_AFTER_MAX_S,
    Forecast,
    Pace,
    QueuedJob,
    QueueSnapshot,
    RunningJob,
    awaiting_model,
    forecast_jobs,
    retry_after_s,
)
from domain.values import JobId, Priority, WaitingFor, WaitingJob

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH
#: A second per generated token, and one token per answer.
SECOND = Pace(
    prefill_token_s=0.0, decode_token_s=1.0, completion_tokens=1, cached_share=0.0, byte_tokens=0.25
)


def queued(name: str, priority: Priority = INTERACTIVE) -> QueuedJob:
    return QueuedJob(id=JobId(name), line=None, priority=priority)


def running(name: str, priority: Priority = INTERACTIVE) -> RunningJob:
    return RunningJob(
        id=JobId(name),
        priority=priority,
        started_at="2026-01-01T00:00:00.000000Z",
        prompt_tokens=9,
        cached_tokens=4,
    )


def turns(slots: int, reserved: int = 0, called: Sequence[str] = ()) -> TurnState:
    return TurnState(
        slots=slots,
        interactive_reserved=reserved,
        running=tuple(JobId(name) for name in called),
    )


def foreseen(
    line: QueueSnapshot,
) -> dict[str, tuple[int | None, float | None, float | None]]:
    """Return position, start and end by job."""
    return {
        job_id: (one.position, one.start_s, one.end_s)
        for job_id, one in forecast_jobs(line).items()
    }


def test_each_running_job_has_a_place_until_its_own_end() -> None:
    line = QueueSnapshot(
        state=turns(2),
        queued=[queued("c"), queued("d")],
        running=[(running("a"), 0.25), (running("b"), 0.5)],
        pace=SECOND,
    )
    assert foreseen(line) == {
        "a": (None, None, 0.75),
        "b": (None, None, 0.5),
        "c": (0, 0.5, 1.5),
        "d": (1, 0.75, 1.75),
    }


def test_batch_jobs_wait_for_running_batch_jobs_also_where_a_place_is_free() -> None:
    line = QueueSnapshot(
        state=turns(4, reserved=2),
        queued=[queued("c", BATCH), queued("d", INTERACTIVE)],
        running=[(running("a", BATCH), 0.25), (running("b", BATCH), 0.5)],
        pace=SECOND,
    )
    assert foreseen(line)["d"] == (0, 0.0, 1.0)
    assert foreseen(line)["c"] == (1, 0.5, 1.5)


def test_running_interactive_jobs_have_no_places_for_batch_jobs() -> None:
    line = QueueSnapshot(
        state=turns(3, reserved=2),
        queued=[queued("b", BATCH)],
        running=[(running("a"), 0.0)],
        pace=SECOND,
    )
    assert foreseen(line)["b"] == (0, 0.0, 1.0)


def test_batch_jobs_begin_one_by_one_where_they_have_one_place() -> None:
    line = QueueSnapshot(
        state=turns(2, reserved=1), queued=[queued("a", BATCH), queued("b", BATCH)], pace=SECOND
    )
    assert foreseen(line) == {"a": (0, 0.0, 1.0), "b": (1, 1.0, 2.0)}


def test_called_jobs_begin_now_and_have_places_of_their_queue() -> None:
    line = QueueSnapshot(
        state=turns(4, reserved=2, called=["c", "b", "gone"]),
        queued=[queued("a", BATCH), queued("b", BATCH), queued("c", BATCH), queued("d")],
        pace=SECOND,
    )
    assert foreseen(line) == {
        "c": (0, 0.0, 1.0),
        "b": (1, 0.0, 1.0),
        "d": (2, 0.0, 1.0),
        "a": (3, 1.0, 2.0),
    }


def test_jobs_that_wait_in_an_engine_say_why_and_are_ahead_of_the_queue() -> None:
    waiting = [
        WaitingJob(id=JobId("b"), waiting_for=WaitingFor.MEMORY, position=0),
        WaitingJob(id=JobId("c"), waiting_for=WaitingFor.PREFIX, position=1),
        WaitingJob(id=JobId("gone"), waiting_for=WaitingFor.PLACE, position=2),
    ]
    line = QueueSnapshot(
        state=turns(3),
        queued=[queued("d"), queued("e")],
        running=[(running("a"), 0.5), (running("b"), 0.5), (running("c", BATCH), 0.25)],
        waiting=waiting,
        pace=SECOND,
    )
    forecasts = forecast_jobs(line)
    assert forecasts[JobId("a")] == Forecast(
        priority=INTERACTIVE, position=None, start_s=None, end_s=0.5
    )
    assert forecasts[JobId("b")] == Forecast(
        priority=INTERACTIVE, position=0, start_s=None, end_s=0.5, waiting_for=WaitingFor.MEMORY
    )
    assert forecasts[JobId("c")] == Forecast(
        priority=BATCH, position=1, start_s=None, end_s=0.75, waiting_for=WaitingFor.PREFIX
    )
    assert [forecasts[JobId(name)].position for name in ("d", "e")] == [2, 3]
    assert [forecasts[JobId(name)].waiting_for for name in ("d", "e")] == [None, None]


def test_while_jobs_are_paused_their_order_is_known_and_no_start() -> None:
    line = QueueSnapshot(
        state=turns(1),
        queued=[queued("b"), queued("c", BATCH)],
        running=[(running("a"), 0.25)],
        is_paused=True,
        pace=SECOND,
    )
    assert forecast_jobs(line) == {
        "a": Forecast(priority=INTERACTIVE, position=None, start_s=None, end_s=0.75),
        "b": Forecast(
            priority=INTERACTIVE,
            position=0,
            start_s=None,
            end_s=None,
            waiting_for=WaitingFor.PAUSED,
        ),
        "c": Forecast(
            priority=BATCH, position=1, start_s=None, end_s=None, waiting_for=WaitingFor.PAUSED
        ),
    }


def test_without_a_pace_the_order_is_that_of_equally_long_jobs() -> None:
    line = QueueSnapshot(
        state=turns(2, reserved=1),
        queued=[queued("a", BATCH), queued("b", BATCH), queued("c"), queued("d")],
        running=[(running("r"), 0.5)],
    )
    forecasts = forecast_jobs(line)
    assert {job_id: one.position for job_id, one in forecasts.items()} == {
        "r": None,
        "c": 0,
        "d": 1,
        "a": 2,
        "b": 3,
    }
    times = [(one.start_s, one.end_s, one.waiting_for) for one in forecasts.values()]
    assert set(times) == {(None, None, None)}


def test_a_waiting_job_waits_for_its_model() -> None:
    assert awaiting_model(BATCH) == Forecast(
        priority=BATCH, position=None, start_s=None, end_s=None, waiting_for=WaitingFor.MODEL
    )


@pytest.mark.parametrize(
    ("seconds", "start_s", "end_s"), [(0.0, 2.0, 5.0), (1.5, 0.5, 3.5), (3.0, 0.0, 2.0), (9, 0, 0)]
)
def test_a_later_forecast_is_nearer_and_never_past(
    seconds: float, start_s: float, end_s: float
) -> None:
    now = Forecast(priority=BATCH, position=3, start_s=2.0, end_s=5.0, waiting_for=WaitingFor.PLACE)
    assert now.after(seconds) == Forecast(
        priority=BATCH, position=3, start_s=start_s, end_s=end_s, waiting_for=WaitingFor.PLACE
    )


def test_what_is_not_foreseen_is_not_foreseen_later() -> None:
    running_on = Forecast(priority=BATCH, position=None, start_s=None, end_s=5.0)
    assert running_on.after(1) == Forecast(priority=BATCH, position=None, start_s=None, end_s=4.0)
    assert awaiting_model(BATCH).after(1) == awaiting_model(BATCH)


@pytest.mark.parametrize(
    ("seconds", "wait_s"),
    [
        (None, 1),
        (-3.0, 1),
        (0.0, 1),
        (1.0, 1),
        (1.01, 2),
        (7.5, 8),
        (3599.5, RETRY_AFTER_MAX_S),
        (3600.5, RETRY_AFTER_MAX_S),
    ],
)
def test_retry_after_is_the_next_whole_second(seconds: float | None, wait_s: int) -> None:
    assert retry_after_s(seconds) == wait_s


def test_a_caller_may_want_shorter_waits() -> None:
    assert [retry_after_s(seconds, most_s=30) for seconds in (29.5, 30.5, None)] == [30, 30, 1]
