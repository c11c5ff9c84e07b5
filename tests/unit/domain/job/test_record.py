from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from domain.events.event import Event
from domain.events.job import (
    AttemptFailed,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobEvent,
    JobExpired,
    JobFailed,
    JobRetried,
)
from domain.job.state import Job, fold, fold_recorded, is_job_event
from domain.log.record import GENESIS_HASH, LogHead, RecordedEvent
from domain.values import JobId, JobStatus, StreamName, Timings, Usage, digest_of
from ops.log.row_codec import link, record_of, record_text
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.job_histories import histories

FAILED_ONCE = AttemptFailed(attempt=1, error="engine_failure", message="it broke", retryable=True)
FAILED = JobFailed(error="engine_failure", message="it broke")


def _recorded(events: Sequence[Event], stream: str = "job-1") -> list[RecordedEvent]:
    head = LogHead(position=0, hash=GENESIS_HASH)
    recorded: list[RecordedEvent] = []
    for version, event in enumerate(events, start=1):
        one = link(
            draft(event),
            stream=StreamName(stream),
            version=version,
            before=head,
            recorded_at=_at(version),
        )
        recorded.append(one)
        head = LogHead(position=one.position, hash=one.hash)
    return recorded


def _at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000Z"


def _view(*events: Event) -> Job:
    view: Job | None = None
    for recorded in _recorded(events):
        view = fold_recorded(view, recorded)
    assert view is not None
    return view


def test_an_accepted_job_is_queued() -> None:
    assert _view(submitted(agent="a", model="other")) == Job(
        id=JobId("job-1"),
        submitted=submitted(agent="a", model="other"),
        correlation_id="req-1",
        created_at=_at(1),
        accepted_position=1,
        position=1,
    )


def test_a_running_job_shows_its_attempt_and_its_prompt() -> None:
    view = _view(submitted(), started())
    assert (view.status, view.attempt, view.started_at) == (JobStatus.RUNNING, 1, _at(2))
    assert view.usage == Usage(prompt_tokens=10, cached_tokens=4)


def test_a_failed_attempt_shows_its_error_while_the_job_waits_again() -> None:
    view = _view(submitted(), started(), FAILED_ONCE)
    assert (view.status, view.error, view.error_message) == (
        JobStatus.QUEUED,
        "engine_failure",
        "it broke",
    )
    assert view.finished_at is None


def test_the_first_start_is_kept_over_later_attempts() -> None:
    view = _view(submitted(), started(), FAILED_ONCE, started(2))
    assert (view.status, view.attempt, view.started_at) == (JobStatus.RUNNING, 2, _at(2))


def test_a_completed_job_forgets_the_error_of_an_earlier_attempt() -> None:
    view = _view(submitted(), started(), FAILED_ONCE, started(2), completed(2))
    assert (view.status, view.error, view.error_message) == (JobStatus.COMPLETED, None, None)
    assert (view.finished_at, view.stop_reason) == (_at(5), "end_turn")
    assert view.usage == Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
    assert view.timings == Timings(
        queued_ms=1.5, prefill_ms=2.25, first_token_ms=3.0, decode_ms=4.125
    )
    assert view.output == digest_of(b"output")


def test_a_failed_job_shows_why() -> None:
    view = _view(submitted(), started(), FAILED_ONCE, FAILED)
    assert (view.status, view.error, view.finished_at) == (
        JobStatus.FAILED,
        "engine_failure",
        _at(4),
    )


def test_a_cancelled_job_keeps_what_it_emitted() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=1)
    view = _view(
        submitted(),
        started(),
        JobCancelRequested(reason="api"),
        JobCancelled(attempt=1, usage=usage, output=digest_of(b"so far")),
    )
    assert (view.status, view.stop_reason, view.cancel_requested) == (
        JobStatus.CANCELLED,
        "cancelled",
        True,
    )
    assert (view.usage, view.output, view.finished_at) == (usage, digest_of(b"so far"), _at(4))


def test_an_expired_job_names_its_deadline() -> None:
    view = _view(submitted(), JobExpired(deadline=_at(1)))
    assert (view.status, view.error) == (JobStatus.EXPIRED, "expired")
    assert view.error_message == f"the deadline {_at(1)} passed"


def test_a_retried_job_waits_again_without_its_error() -> None:
    view = _view(submitted(), started(), FAILED, JobRetried(reason="operator"))
    assert (view.status, view.error, view.error_message, view.finished_at) == (
        JobStatus.QUEUED,
        None,
        None,
        None,
    )


def test_an_event_that_changes_nothing_moves_the_position() -> None:
    before, after = _view(submitted()), _view(submitted(), JobAttached(reason="again"))
    assert (before.position, after.position) == (1, 2)
    assert after.status is before.status


def test_a_stream_that_does_not_begin_with_an_acceptance_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="JobSubmitted"):
        _view(started())


def test_only_job_streams_concern_the_projection() -> None:
    (job,) = _recorded([submitted()], "job-1")
    (worker,) = _recorded([worker_event()], "worker-1")
    assert is_job_event(job)
    assert not is_job_event(worker)


@given(histories())
def test_the_fold_of_events_is_that_of_the_log_without_stamps(
    history: tuple[JobEvent, ...],
) -> None:
    view, job = _view(*history), fold(JobId("job-1"), history)
    assert view.position == job.version
    assert (view.finished_at is not None) == job.status.is_terminal
    stamps = ("correlation_id", "created_at", "accepted_position", "position")
    times = ("started_at", "finished_at")
    plain = replace(view, **{name: getattr(job, name) for name in (*stamps, *times)})
    assert plain == job


@given(histories())
def test_a_record_survives_its_json(history: tuple[JobEvent, ...]) -> None:
    view = _view(*history)
    assert record_of(Job, record_text(view)) == view
