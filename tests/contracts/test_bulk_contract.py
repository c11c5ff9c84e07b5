"""Changes of all jobs of a filter, on the fake, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from domain.events.job import JobFailed
from domain.job.cancel import BulkChange, BulkStep, JobCancellation
from domain.job.listing import JobFilter
from domain.values import JobId, JobStatus, Priority, StreamName, digest_of
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, Store, opened_store
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.time import SequentialIds

NIGHT = JobFilter(labels=("night",))
Change = Callable[..., BulkChange]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


@pytest.fixture
def change(store: Store) -> Change:
    """Return what makes changes of many jobs."""
    broker = FakeBroker()
    cancellation = JobCancellation(
        log=store.log,
        payloads=store.log,
        queue=broker.queue,
        sink=broker.items,
        backlog=broker.items,
        signals=broker.signals,
        ids=SequentialIds(),
    )
    whole = BulkChange(views=store.views, cancellation=cancellation, reason="api", limit=500)
    return partial(replace, whole)


def _accept(store: Store, name: str, *labels: str, **facts: Any) -> JobId:
    payloads = {digest_of(text): text for text in (b"request", b"output")}
    event = draft(submitted(labels=labels, **facts))
    store.log.append(StreamName(name), [event], expected_version=0, payloads=payloads)
    return JobId(name)


def _start(store: Store, job: JobId) -> None:
    store.log.append(StreamName(job), [draft(started())], expected_version=1)


def _results(steps: list[BulkStep]) -> list[tuple[str, str]]:
    return [(step.job.id, step.result) for step in steps]


def test_all_open_jobs_of_a_filter_are_cancelled_and_no_others(
    store: Store, change: Change
) -> None:
    held = _accept(store, "job-1", "night", start_after="2026-01-02T00:00:00.000000Z")
    running = _accept(store, "job-2", "night")
    _start(store, running)
    ended = _accept(store, "job-3", "night")
    _start(store, ended)
    store.log.append(StreamName(ended), [draft(completed())], expected_version=2)
    other = _accept(store, "job-4", "day")
    waiting = _accept(store, "job-5", "night", "b")
    change().cancellation.queue.enqueue(waiting, Priority.INTERACTIVE)
    before = store.log.head().position
    steps, has_more = change(is_dry=True).cancel(NIGHT)
    every = [held, waiting, running]
    assert (_results(steps), has_more) == ([(job, "matched") for job in every], False)
    assert store.log.head().position == before
    steps, has_more = change(limit=1).cancel(NIGHT)
    assert (_results(steps), has_more) == ([(held, "cancelled")], True)
    steps, has_more = change().cancel(NIGHT)
    assert dict(_results(steps))[running] == "requested"
    assert {job for job, _ in _results(steps)} == {waiting, running}
    assert not has_more
    before = store.log.head().position
    change().cancel(NIGHT)
    assert store.log.head().position == before
    unchanged = [store.views.get(job) for job in (ended, other)]
    assert [job and job.status for job in unchanged] == [JobStatus.COMPLETED, JobStatus.QUEUED]


def test_filters_of_a_change_have_facts_times_and_states(store: Store, change: Change) -> None:
    first = _accept(store, "job-1", "night", agent="a")
    store.clock.advance(10)
    second = _accept(store, "job-2", "night", model="b", priority=Priority.BATCH)
    _start(store, second)

    def matched(**facts: Any) -> list[str]:
        return [one.job.id for one in change(is_dry=True).cancel(JobFilter(**facts))[0]]

    assert matched(agent="a") == matched(status=JobStatus.QUEUED) == [first]
    assert matched(model="b") == matched(priority=Priority.BATCH) == [second]
    assert matched(since="2026-01-01T00:00:10.000000Z", labels=("night",)) == [second]
    assert matched(status=JobStatus.COMPLETED) == matched(labels=("night", "b")) == []


class _Ending:
    """Views of which every job that is found ends before it is returned."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self, wanted: JobFilter, **options: Any) -> Any:
        page = self._store.views.page(wanted, **options)
        for job in page.jobs:
            self._store.log.append(
                StreamName(job.id), [draft(completed())], expected_version=job.version
            )
        return page


def test_a_job_that_ends_meanwhile_stays_as_it_is(store: Store, change: Change) -> None:
    job = _accept(store, "job-1", "night")
    _start(store, job)
    racing = change(views=_Ending(store))
    steps, _ = racing.cancel(JobFilter(labels=("night",), status=JobStatus.RUNNING))
    assert _results(steps) == [(job, "unchanged")]
    assert len(store.log.load(StreamName(job))) == 3


def test_jobs_without_an_answer_are_retried_and_the_rest_is_refused_or_left(
    store: Store, change: Change
) -> None:
    failed, open_job = _accept(store, "job-1", "night"), _accept(store, "job-2", "night")
    refused = _accept(store, "job-3", "night")
    for job, error in ((failed, "engine_failure"), (refused, "invalid_request")):
        end = draft(JobFailed(error=error, message="x"))
        store.log.append(StreamName(job), [end], expected_version=1)
    steps, _ = change(is_dry=True).retry(NIGHT)
    assert _results(steps) == [(refused, "matched"), (failed, "matched")]
    steps, has_more = change().retry(NIGHT)
    assert (_results(steps), has_more) == ([(refused, "refused"), (failed, "retried")], False)
    assert [step.error and step.error.code for step in steps] == ["not_retryable", None]
    found = [store.views.get(job) for job in (failed, open_job, refused)]
    assert [job and job.status for job in found] == [
        JobStatus.QUEUED,
        JobStatus.QUEUED,
        JobStatus.FAILED,
    ]
