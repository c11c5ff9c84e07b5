"""What is foretold: in the order of the turns, never before now, and not at all unmeasured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine.workers import TurnState
from domain.job.eta import (
    Forecast,
    MeasuredJob,
    Pace,
    QueuedJob,
    QueueSnapshot,
    RunningJob,
    forecast_jobs,
    pace_of,
    retry_after_s,
    seconds_until_room,
)
from domain.job.fair_scheduler import TurnOrder, TurnRequest
from domain.values import JobId, Priority

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH
SECOND = Pace(
    prefill_token_s=0.0, decode_token_s=1.0, completion_tokens=1, cached_share=0.0, byte_tokens=0.25
)
AT = "2026-01-01T00:00:00.000000Z"


def job(number: int) -> JobId:
    return JobId(f"job-{number:04d}")


def queued(
    number: int, agent: str | None = None, priority: Priority = INTERACTIVE, tokens: int = 1
) -> QueuedJob:
    return QueuedJob(id=job(number), line=agent, priority=priority, max_tokens=tokens)


def running(number: int, priority: Priority = INTERACTIVE) -> RunningJob:
    return RunningJob(
        id=job(number), priority=priority, started_at=AT, prompt_tokens=9, cached_tokens=4
    )


def state(slots: int, reserved: int = 0) -> TurnState:
    return TurnState(slots=slots, interactive_reserved=reserved)


amounts = st.floats(0, 1e6, allow_nan=False)
paces = st.builds(
    Pace,
    prefill_token_s=amounts,
    decode_token_s=amounts,
    completion_tokens=amounts,
    cached_share=st.floats(0, 1),
    byte_tokens=st.floats(0, 10),
)
measured = st.builds(
    MeasuredJob,
    prompt_tokens=st.integers(0, 10**6),
    cached_tokens=st.integers(0, 10**6),
    completion_tokens=st.integers(0, 10**5),
    prefill_ms=amounts,
    decode_ms=amounts,
    request_bytes=st.none() | st.integers(0, 10**7),
)


@st.composite
def lines(draw: st.DrawFn) -> QueueSnapshot:
    size = draw(st.integers(0, 25))
    waiting = [
        QueuedJob(
            id=job(number),
            line=draw(st.sampled_from(["a", "b", "c", None])),
            priority=draw(st.sampled_from(Priority)),
            request_bytes=draw(st.none() | st.integers(0, 10**6)),
            max_tokens=draw(st.none() | st.integers(0, 10**4)),
        )
        for number in range(size)
    ]
    called = draw(st.sets(st.sampled_from(waiting), max_size=2)) if waiting else set()
    count = draw(st.integers(0, 4))
    busy = [(running(1000 + number), draw(st.floats(-1, 1e5))) for number in range(count)]
    slots = draw(st.integers(1, 4))
    turns = TurnState(
        slots=slots,
        interactive_reserved=draw(st.integers(0, 5)),
        running=tuple(one.id for one in called),
        passed_batch=draw(st.integers(0, 9)),
    )
    return QueueSnapshot(state=turns, queued=waiting, running=busy, pace=draw(st.none() | paces))


def by_position(foreseen: dict[JobId, Forecast]) -> list[Forecast]:
    waiting = [one for one in foreseen.values() if one.position is not None]
    return sorted(waiting, key=lambda one: one.position or 0)


@given(lines())
def test_every_waiting_job_has_a_place_and_none_starts_before_those_ahead(
    line: QueueSnapshot,
) -> None:
    foreseen = forecast_jobs(line)
    waiting = by_position(foreseen)
    assert set(foreseen) == {one.id for one in line.queued} | {one.id for one, _ in line.running}
    assert [one.position for one in waiting] == list(range(len(line.queued)))
    if line.pace is None:
        assert all(one.start_s is None and one.end_s is None for one in foreseen.values())
        return
    starts = [one.start_s or 0.0 for one in waiting]
    assert starts == sorted(starts)
    assert all(0 <= start <= (one.end_s or 0) for start, one in zip(starts, waiting, strict=True))
    assert all((one.end_s or 0) >= 0 for one in foreseen.values())


@given(lines(), paces)
def test_no_more_jobs_run_at_once_than_there_are_places(line: QueueSnapshot, pace: Pace) -> None:
    empty = replace(line, running=(), pace=pace, state=replace(line.state, running=()))
    waiting = by_position(forecast_jobs(empty))
    for one in waiting:
        at = one.start_s or 0.0
        running_then = [
            other for other in waiting if (other.start_s or 0) <= at < (other.end_s or 0)
        ]
        assert len(running_then) <= line.state.slots


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(1, 4))
def test_a_pace_twice_as_slow_takes_twice_as_long(tokens: list[int], slots: int) -> None:
    waiting = [queued(number, tokens=most) for number, most in enumerate(tokens)]
    usual = replace(SECOND, completion_tokens=5.0)
    slow = replace(usual, decode_token_s=2.0)
    fast_line = QueueSnapshot(state=state(slots), queued=waiting, pace=usual)
    fast, slower = forecast_jobs(fast_line), forecast_jobs(replace(fast_line, pace=slow))
    for job_id, one in fast.items():
        assert slower[job_id].start_s == 2 * (one.start_s or 0)
        assert slower[job_id].end_s == 2 * (one.end_s or 0)


def test_jobs_of_one_line_follow_each_other_place_by_place() -> None:
    foreseen = forecast_jobs(
        QueueSnapshot(state=state(2), queued=[queued(n) for n in range(5)], pace=SECOND)
    )
    assert [one.start_s for one in by_position(foreseen)] == [0, 0, 1, 1, 2]
    assert foreseen[job(4)].end_s == 3


def test_running_jobs_are_waited_for_and_one_that_is_overdue_half_of_its_time() -> None:
    line = QueueSnapshot(
        state=state(1),
        queued=[queued(1)],
        running=[(running(9), 0.25)],
        pace=SECOND,
    )
    assert forecast_jobs(line)[job(1)].start_s == 0.75
    assert forecast_jobs(line)[job(9)] == Forecast(
        priority=INTERACTIVE, position=None, start_s=None, end_s=0.75
    )
    overdue = replace(line, running=[(running(9), 50.0)])
    assert forecast_jobs(overdue)[job(1)].start_s == pytest.approx(25.0)


def test_job_that_was_called_is_first_and_begins_now() -> None:
    turns = replace(state(1), running=(job(5),))
    foreseen = forecast_jobs(QueueSnapshot(state=turns, queued=[queued(1), queued(5)], pace=SECOND))
    assert [foreseen[job(n)].position for n in (5, 1)] == [0, 1]
    assert (foreseen[job(5)].start_s, foreseen[job(1)].start_s) == (0, 1)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(Priority)), max_size=20),
    st.integers(0, 20),
)
def test_order_foreseen_is_the_order_in_which_the_turns_come(
    jobs: list[tuple[str | None, Priority]], begun: int
) -> None:
    order = TurnOrder(slots=1, interactive_reserved=0)
    waiting = [
        QueuedJob(id=job(number), line=agent, priority=priority)
        for number, (agent, priority) in enumerate(jobs)
    ]
    for one in waiting:
        order.add(TurnRequest(id=one.id, line=one.line, priority=one.priority))
    left = {one.id: one for one in waiting}
    for _ in range(begun):
        if (called := order.next()) is not None:
            order.release(called)
            del left[called]
    forecasts = forecast_jobs(QueueSnapshot(state=order.state(), queued=list(left.values())))
    came = []
    while (called := order.next()) is not None:
        came.append(called)
        order.release(called)
    assert sorted(forecasts, key=lambda job_id: forecasts[job_id].position or 0) == came


@given(st.lists(measured, max_size=20))
def test_pace_is_never_negative_and_lies_between_what_was_measured(
    recent: list[MeasuredJob],
) -> None:
    pace = pace_of(recent)
    if pace is None:
        return
    assert min(pace.prefill_token_s, pace.decode_token_s, pace.byte_tokens) >= 0
    assert 0 <= pace.cached_share <= 1
    lengths = [one.completion_tokens for one in recent]
    assert min(lengths) * 0.999 <= pace.completion_tokens <= max(lengths) * 1.001


def test_nothing_measured_gives_no_pace_and_new_jobs_count_more() -> None:
    def took(ms: float) -> MeasuredJob:
        return MeasuredJob(
            prompt_tokens=100,
            cached_tokens=0,
            completion_tokens=10,
            prefill_ms=ms,
            decode_ms=ms,
            request_bytes=400,
        )

    assert pace_of([]) is None
    assert pace_of([replace(took(5), completion_tokens=0)]) is None
    assert pace_of([replace(took(5), request_bytes=None)]) is None
    alike = pace_of([took(50)] * 10)
    assert alike is not None
    assert alike.prefill_token_s == pytest.approx(0.0005)
    assert alike.decode_token_s == pytest.approx(0.005)
    assert alike.byte_tokens == pytest.approx(0.25)
    changed = pace_of([took(100)] * 8 + [took(50)] * 100)
    assert changed is not None
    assert changed.decode_token_s > 0.0074


def test_room_is_there_when_as_many_have_begun_as_are_too_many() -> None:
    line = QueueSnapshot(state=state(1), queued=[queued(n) for n in range(5)], pace=SECOND)
    foreseen = forecast_jobs(replace(line, running=[(running(99), 0.5)])).values()
    assert seconds_until_room(foreseen, INTERACTIVE, waiting=4, limit=5) == 0
    assert seconds_until_room(foreseen, INTERACTIVE, waiting=5, limit=5) == 0.5
    assert seconds_until_room(foreseen, INTERACTIVE, waiting=7, limit=5) == 2.5
    assert seconds_until_room(foreseen, INTERACTIVE, waiting=50, limit=5) is None
    assert seconds_until_room(foreseen, BATCH, waiting=5, limit=5) is None


@given(st.none() | st.floats(-1e9, 1e300))
def test_retry_after_is_a_whole_number_within_bounds(seconds: float | None) -> None:
    wait_s = retry_after_s(seconds)
    assert isinstance(wait_s, int)
    assert 1 <= wait_s <= 3600
    assert seconds is None or wait_s >= min(seconds, 3600)
