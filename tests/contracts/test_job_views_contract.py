"""What the jobs projection finds and refuses, on the fake and on SQLite."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.errors import IdempotencyKeyTaken, UniqueJobExists
from domain.events.job import (
    AttemptFailed,
    JobCancelRequested,
    JobExpired,
    JobFailed,
    JobHidden,
    JobReleased,
    JobRetried,
)
from domain.job.eta import QueuedJob
from domain.job.listing import JobFilter
from domain.values import JobId, JobStatus, Owner, Predecessor, Priority, StreamName, digest_of
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, Store, new_log_of, opened_store
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty log."""
    return new_log_of(request, tmp_path)


def _accept(store: Store, name: str, **facts: Any) -> JobId:
    store.log.append(StreamName(name), [draft(submitted(**facts))], expected_version=0)
    return JobId(name)


def test_an_idempotency_key_belongs_to_one_job(store: Store) -> None:
    _accept(store, "job-1", key="k")
    with pytest.raises(IdempotencyKeyTaken) as caught:
        _accept(store, "job-2", key="k")
    assert caught.value.job_id == "job-1"
    assert store.log.load(StreamName("job-2")) == ()
    _accept(store, "job-3", key="other")
    _accept(store, "job-4")
    _accept(store, "job-5")
    assert store.log.head().position == 4


def test_writers_of_one_key_at_the_same_time_leave_one_job(store: Store) -> None:
    barrier = threading.Barrier(8)

    def write(number: int) -> bool:
        barrier.wait(scaled(60))
        try:
            _accept(store, f"job-{number}", key="k")
        except IdempotencyKeyTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 1
    assert store.log.head().position == 1


#: Ten seconds after the first instant of a store's clock.
TEN = "2026-01-01T00:00:10.000000Z"


def test_a_unique_job_is_the_only_one_until_its_instant(store: Store) -> None:
    _accept(store, "job-1", unique="u", unique_until=TEN)
    _accept(store, "job-2", unique="other", unique_until=TEN)
    store.log.append(StreamName("job-1"), [draft(started())], expected_version=1)
    store.log.append(StreamName("job-1"), [draft(completed())], expected_version=2)
    store.clock.advance(9)
    with pytest.raises(UniqueJobExists) as caught:
        _accept(store, "job-3", unique="u", unique_until="2026-01-01T01:00:00.000000Z")
    assert caught.value.job_id == "job-1"
    assert store.log.load(StreamName("job-3")) == ()
    key = digest_of(b"u")
    found = [store.views.holder(key, at=at) for at in ("2026-01-01T00:00:09.999999Z", TEN)]
    assert [one and one.id for one in found] == ["job-1", None]
    store.clock.advance(1)
    _accept(store, "job-3", unique="u", unique_until="2026-01-01T01:00:00.000000Z")
    later = store.views.holder(key, at=TEN)
    assert later is not None
    assert later.id == "job-3"


@pytest.mark.parametrize("end", [JobFailed(error="x", message="x"), JobExpired(deadline=TEN)])
def test_a_job_without_an_answer_is_unique_no_longer_until_it_is_retried(
    store: Store, end: JobFailed | JobExpired
) -> None:
    _accept(store, "job-1", unique="u", unique_until=TEN)
    store.log.append(StreamName("job-1"), [draft(end)], expected_version=1)
    assert store.views.holder(digest_of(b"u"), at="") is None
    store.log.append(StreamName("job-1"), [draft(JobRetried(reason="api"))], expected_version=2)
    with pytest.raises(UniqueJobExists):
        _accept(store, "job-2", unique="u", unique_until=TEN)
    retried = store.log.load(StreamName("job-1"))
    store.log.append(StreamName("job-1"), [draft(end)], expected_version=len(retried))
    _accept(store, "job-2", unique="u", unique_until=TEN)


def test_writers_of_one_unique_job_at_the_same_time_leave_one(store: Store) -> None:
    barrier = threading.Barrier(8)

    def write(number: int) -> str | None:
        barrier.wait(scaled(60))
        try:
            return _accept(store, f"job-{number}", unique="u", unique_until=TEN)
        except UniqueJobExists as error:
            return error.job_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(write, range(8)))) == 1
    assert store.log.head().position == 1


@pytest.mark.parametrize("kind", STORES[1:], indirect=True)
def test_two_processes_leave_one_unique_job(kind: str) -> None:
    with (
        open_log(kind, clock=FakeClock()) as one,
        open_log(kind, clock=FakeClock()) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        barrier = threading.Barrier(8)

        def write(number: int) -> str:
            event = draft(submitted(unique="u", unique_until=TEN))
            barrier.wait(scaled(60))
            try:
                log = (one, other)[number % 2]
                return log.append(StreamName(f"job-{number}"), [event], expected_version=0)[
                    0
                ].stream
            except UniqueJobExists as error:
                return error.job_id

        assert len(set(pool.map(write, range(8)))) == 1
        assert one.head().position == 1


def test_pages_are_filtered_by_model_priority_and_time(store: Store) -> None:
    _accept(store, "job-1", model="a")
    store.clock.advance(10)
    _accept(store, "job-2", model="b", priority=Priority.BATCH)
    _accept(store, "job-3", model="b")

    def ids(**wanted: Any) -> list[str]:
        return [view.id for view in store.views.page(JobFilter(**wanted), limit=9).jobs]

    assert ids(model="b") == ["job-3", "job-2"]
    assert ids(priority=Priority.BATCH) == ["job-2"]
    assert ids(since="2026-01-01T00:00:10.000000Z") == ["job-3", "job-2"]
    assert ids(since="2026-01-01T00:00:10.000001Z") == []


def test_pages_are_filtered_by_labels(store: Store) -> None:
    _accept(store, "job-1", labels=("night", "owner=ä😀"))
    _accept(store, "job-2", labels=("night", "weekly"), agent="a")
    _accept(store, "job-3", labels=("weekly",), agent="a")
    store.log.append(StreamName("job-2"), [draft(started())], expected_version=1)

    def ids(*labels: str, before: JobId | None = None, **facts: Any) -> list[str]:
        wanted = JobFilter(labels=labels, **facts)
        return [one.id for one in store.views.page(wanted, limit=9, before=before).jobs]

    assert ids() == ["job-3", "job-2", "job-1"]
    assert ids("night") == ["job-2", "job-1"]
    assert ids("weekly", "night") == ["job-2"]
    assert ids("owner=ä😀") == ["job-1"]
    assert ids("night", status=JobStatus.QUEUED) == ["job-1"]
    assert ids("weekly", agent="a", before=JobId("job-3")) == ["job-2"]
    assert ids("owner") == ids("") == []
    first = store.views.page(JobFilter(labels=("night",)), limit=1)
    assert ([one.id for one in first.jobs], first.has_more) == (["job-2"], True)
    assert ids("night", before=first.jobs[0].id) == ["job-1"]


def test_jobs_that_asked_the_same_are_found_newest_first(store: Store) -> None:
    _accept(store, "job-1", model="a")
    _accept(store, "job-2", model="b")
    _accept(store, "job-3", model="a")
    asked = submitted(model="a").asked
    assert asked is not None
    assert [view.id for view in store.views.alike(asked, limit=9)] == ["job-3", "job-1"]
    assert [view.id for view in store.views.alike(asked, limit=1)] == ["job-3"]


def test_jobs_are_overdue_from_the_instant_of_their_deadline(store: Store) -> None:
    early, late = "2026-01-01T00:00:01.000000Z", "2026-01-01T00:00:02.000000Z"
    _accept(store, "job-1", deadline=early)
    _accept(store, "job-2", finish_deadline=late)
    _accept(store, "job-3", deadline=early)
    store.log.append(StreamName("job-3"), [draft(started())], expected_version=1)
    _accept(store, "job-4", deadline=early)
    wish = draft(JobCancelRequested(reason="api"))
    store.log.append(StreamName("job-4"), [wish], expected_version=1)
    _accept(store, "job-5")

    def overdue(now: str) -> list[str]:
        return [view.id for view in store.views.overdue(now)]

    assert overdue("2026-01-01T00:00:00.999999Z") == []
    assert overdue(early) == ["job-1"]
    assert overdue(late) == ["job-1", "job-2"]


def test_waiting_jobs_are_listed_in_order_and_counted_by_queue(store: Store) -> None:
    _accept(store, "job-1", agent="a")
    _accept(store, "job-2", priority=Priority.BATCH)
    _accept(store, "job-3")
    store.log.append(StreamName("job-3"), [draft(started())], expected_version=1)
    assert store.queue_views.queued(Priority.INTERACTIVE, limit=9) == (
        QueuedJob(id=JobId("job-1"), line="a", priority=Priority.INTERACTIVE, max_tokens=16),
    )
    assert [one.id for one in store.queue_views.queued(Priority.BATCH, limit=9)] == ["job-2"]
    of_a_key = draft(replace(submitted(), owner=Owner("mine")))
    store.log.append(StreamName("job-4"), [of_a_key], expected_version=0)
    lines = [one.line for one in store.queue_views.queued(Priority.INTERACTIVE, limit=9)]
    assert lines == ["a", "key=mine"]
    assert [one.id for one in store.queue_views.queued(Priority.INTERACTIVE, limit=1)] == ["job-1"]
    assert [store.views.waiting(priority) for priority in Priority] == [{None: 2}, {None: 1}]
    of_mine = [store.views.waiting(priority, owner=Owner("mine")) for priority in Priority]
    assert of_mine == [{None: 1}, {}]
    failed = AttemptFailed(attempt=1, error="draining", message="it stops", retryable=True)
    store.log.append(StreamName("job-3"), [draft(failed)], expected_version=2)
    found = store.queue_views.queued(Priority.INTERACTIVE, limit=9)
    assert {one.id: one.has_begun for one in found} == {
        "job-1": False,
        "job-3": True,
        "job-4": False,
    }


def test_jobs_are_counted_by_status(store: Store) -> None:
    assert set(store.views.counts().values()) == {0}
    _accept(store, "job-1")
    _accept(store, "job-2")
    store.log.append(StreamName("job-2"), [draft(started())], expected_version=1)
    counts = store.views.counts()
    assert list(counts) == list(JobStatus)
    assert (counts[JobStatus.QUEUED], counts[JobStatus.RUNNING]) == (1, 1)
    assert sum(counts.values()) == 2


def test_open_jobs_are_counted_by_queue(store: Store) -> None:
    empty = store.queue_views.open_jobs()
    assert (empty.waiting, empty.oldest) == (dict.fromkeys(Priority, 0), {})
    assert (empty.running, empty.agents) == (0, 0)
    _accept(store, "job-1", agent="a")
    _accept(store, "job-2", agent="b", priority=Priority.BATCH)
    _accept(store, "job-3", agent="a")
    _accept(store, "job-4")
    store.log.append(StreamName("job-3"), [draft(started())], expected_version=1)
    both = [draft(started()), draft(completed())]
    _accept(store, "job-5", agent="c")
    store.log.append(StreamName("job-5"), both, expected_version=1)
    found = store.queue_views.open_jobs()
    assert found.waiting == {Priority.INTERACTIVE: 2, Priority.BATCH: 1}
    assert (found.running, found.agents) == (1, 2)
    first = store.views.get(JobId("job-1"))
    assert first is not None
    assert found.oldest[Priority.INTERACTIVE] == first.created_at


def test_bound_jobs_are_found_by_their_model(store: Store) -> None:
    def accept(job: str, model: str | None, *, waits_for_model: bool = False) -> None:
        event = replace(submitted(), bound_model=model, waits_for_model=waits_for_model)
        store.log.append(StreamName(job), [draft(event)], expected_version=0)

    accept("job-1", "a")
    accept("job-2", "a", waits_for_model=True)
    accept("job-3", None)
    accept("job-4", "b", waits_for_model=True)
    accept("job-5", "c")
    store.log.append(StreamName("job-4"), [draft(started())], expected_version=1)
    wish = draft(JobCancelRequested(reason="api"))
    store.log.append(StreamName("job-5"), [wish], expected_version=1)
    assert store.views.waiting(Priority.INTERACTIVE) == {"a": 2, None: 1, "c": 1}
    assert store.views.bound_models() == ("a", "b", "c")

    def bound(model: str, before: str = "2026-01-01T00:00:00.000000Z") -> list[str]:
        return [view.id for view in store.views.bound(model, accepted_before=before, limit=9)]

    assert bound("a") == ["job-1"]
    assert bound("a", "2026-01-01T00:00:00.000001Z") == ["job-1", "job-2"]
    assert bound("b") == ["job-4"]
    assert bound("c") == []
    queued = store.queue_views.queued(Priority.INTERACTIVE, limit=9)
    assert [job.bound_model for job in queued] == ["a", "a", None, "c"]
    view = store.views.get(JobId("job-4"))
    assert view is not None
    assert (view.answered_by, view.started, view.epoch) == ("m", started(), 1)


def test_running_and_measured_jobs_have_the_size_of_their_request(
    store: Store,
) -> None:
    _accept(store, "job-1", priority=Priority.BATCH)
    _accept(store, "job-2")
    text = b"request"
    both = [draft(started()), draft(completed())]
    store.log.append(
        StreamName("job-2"), both, expected_version=1, payloads={digest_of(text): text}
    )
    store.log.append(StreamName("job-1"), [draft(started())], expected_version=1)
    (running,) = store.queue_views.running(limit=9)
    assert (running.id, running.priority, running.max_tokens) == ("job-1", Priority.BATCH, 16)
    assert (running.prompt_tokens, running.cached_tokens) == (10, 4)
    view = store.views.get(JobId("job-1"))
    assert view is not None
    assert running.started_at == view.started_at
    (took,) = store.queue_views.measured(limit=9)
    assert (took.prompt_tokens, took.cached_tokens, took.completion_tokens) == (10, 4, 3)
    assert took.request_bytes == len(text)
    assert took.decode_ms == completed().timings.decode_ms
    _accept(store, "job-5")
    assert store.queue_views.queued(Priority.INTERACTIVE, limit=9)[0].request_bytes == len(text)


def test_held_jobs_are_found_once_their_instant_has_come(store: Store) -> None:
    early, late = "2026-01-01T00:00:05.000000Z", "2026-01-01T00:00:10.000000Z"
    first = _accept(store, "job-1", start_after=late)
    second = _accept(store, "job-2", start_after=early, deadline=late)
    _accept(store, "job-3")

    def held(now: str, limit: int = 9) -> list[str]:
        return [view.id for view in store.views.held(now, limit=limit)]

    assert held("2026-01-01T00:00:04.999999Z") == []
    assert (held(early), held(late), held(late, limit=1)) == ([second], [first, second], [first])
    assert store.views.count_held() == 2
    assert store.views.count_held(owner=Owner("key")) == 0
    assert store.views.counts()[JobStatus.HELD] == 2
    assert store.views.waiting(Priority.INTERACTIVE) == {None: 1}
    assert [view.id for view in store.views.unfinished()] == ["job-1", "job-2", "job-3"]
    assert [view.id for view in store.views.unfinished(with_held=False)] == ["job-3"]
    assert [view.id for view in store.views.overdue(late)] == [second]
    assert store.queue_views.open_jobs().waiting[Priority.INTERACTIVE] == 1


def test_a_released_or_cancelled_job_is_no_longer_held_until_its_instant(store: Store) -> None:
    late = "2026-01-01T00:00:10.000000Z"
    first, second = (
        _accept(store, "job-1", start_after=late),
        _accept(store, "job-2", start_after=late),
    )
    store.clock.advance(3)
    store.log.append(StreamName(first), [draft(JobReleased())], expected_version=1)
    store.log.append(
        StreamName(second), [draft(JobCancelRequested(reason="api"))], expected_version=1
    )
    assert [view.id for view in store.views.held("", limit=9)] == [second]
    released = store.views.get(first)
    assert released is not None
    assert (released.status, released.waiting_since) == (
        JobStatus.QUEUED,
        "2026-01-01T00:00:03.000000Z",
    )


def test_no_model_is_wanted_for_a_held_job(store: Store) -> None:
    held = replace(
        submitted(start_after="2026-01-01T00:00:10.000000Z"),
        bound_model="m",
        waits_for_model=True,
    )
    store.log.append(StreamName("job-1"), [draft(held)], expected_version=0)
    assert store.views.bound_models() == ()
    assert store.views.bound("m", accepted_before="9999", limit=9) == ()
    store.clock.advance(10)
    store.log.append(StreamName("job-1"), [draft(JobReleased())], expected_version=1)
    assert store.views.bound_models() == ("m",)
    assert store.views.bound("m", accepted_before="2026-01-01T00:00:10.000000Z", limit=9) == ()
    assert store.views.bound("m", accepted_before="2026-01-01T00:00:10.000001Z", limit=9)


def test_a_job_that_waits_for_others_is_found_once_the_last_of_them_has_ended(store: Store) -> None:
    first, second = _accept(store, "job-1"), _accept(store, "job-2")
    after = (Predecessor(name="0", job=first), Predecessor(name="1", job=second))
    third = _accept(store, "job-3", after=after)
    fourth = _accept(store, "job-4", after=(Predecessor(name="0", job="job-5"),))

    def held(after: int = 0) -> list[str]:
        return [view.id for view in store.views.held("9", limit=9, after=after)]

    assert held() == [fourth]
    for job in (second, first):
        store.log.append(
            StreamName(job), [draft(started()), draft(completed())], expected_version=1
        )
    assert held() == [third, fourth]
    view = store.views.get(third)
    assert view is not None
    assert view.submitted.after == after
    assert held(view.accepted_position) == [fourth]
    store.log.append(StreamName(second), [draft(JobHidden())], expected_version=3)
    store.log.append(
        StreamName(third), [draft(JobReleased(request=digest_of(b"filled")))], expected_version=1
    )
    released = store.views.get(third)
    assert released is not None
    assert released.submitted.request == digest_of(b"filled")
    assert held() == [fourth]
