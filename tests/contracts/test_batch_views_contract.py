from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pytest

from domain.batch.ports import BatchTally, BatchViews
from domain.batch.state import BatchId, job_of_line
from domain.events.batch import BatchEnded, BatchFailed, BatchSubmitted, FileCreated
from domain.events.job import JobCancelRequested
from domain.log.ports import EventLog
from domain.log.record import Draft
from domain.values import EventId, JobId, JobStatus, Owner, StreamName, Usage, digest_of
from ops.clock import uuid7_hex
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, new_log_of
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

BATCHES = [BatchId(f"batch-{number:032x}") for number in range(4)]
NAMES = [StreamName(batch_id) for batch_id in BATCHES]
SUBMITTED = BatchSubmitted(
    protocol="anthropic", endpoint="/v1/messages", content=digest_of(b""), lines=9, expires_at="2"
)


class _Log(EventLog, Protocol): ...


@dataclass
class Store:
    log: _Log
    views: BatchViews

    def begin(self, batch_id: BatchId, *, owner: Owner | None = None) -> None:
        facts = replace(SUBMITTED, owner=owner)
        self.log.append(StreamName(batch_id), [draft(facts)], expected_version=0)

    def add_line(
        self, batch_id: BatchId, line: int, *, bound_model: str | None = None
    ) -> StreamName:
        stream = StreamName(job_of_line(batch_id, line))
        facts = replace(submitted(), bound_model=bound_model)
        accepted = Draft(event_id=EventId(uuid7_hex()), event=facts, correlation_id=batch_id)
        self.log.append(stream, [accepted], expected_version=0)
        return stream


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "fake":
        fake = InMemoryEventLog(FakeClock())
        yield Store(fake, InMemoryBatchViews(fake))
        return
    with open_log(new_log_of(request, tmp_path), clock=FakeClock()) as real:
        yield Store(real, real.batches)


def test_batch_without_jobs_has_an_empty_tally(store: Store) -> None:
    assert store.views.tally(BATCHES[0]) == BatchTally()
    assert store.views.usage(BATCHES[0]) == Usage()
    assert store.views.open_jobs(BATCHES[0]) == ()
    assert store.views.line_jobs(BATCHES[0], first=0, limit=10) == {}


def test_jobs_of_a_batch_are_counted_and_summed_apart_from_others(store: Store) -> None:
    lines = [store.add_line(BATCHES[0], line) for line in (0, 1, 7)]
    other = store.add_line(BATCHES[1], 300)
    for stream in (lines[1], other):
        drafts = [draft(started()), draft(completed())]
        store.log.append(stream, drafts, expected_version=1)
    tally = store.views.tally(BATCHES[0])
    assert {status: n for status, n in tally.by_status.items() if n} == {
        JobStatus.QUEUED: 2,
        JobStatus.COMPLETED: 1,
    }
    assert (tally.jobs, tally.open, tally.last_line) == (3, 2, 7)
    assert store.views.usage(BATCHES[0]) == completed().usage
    assert store.views.tally(BATCHES[1]).last_line == 300


def test_waiting_jobs_of_a_batch_are_counted_by_their_model(store: Store) -> None:
    assert store.views.waiting(BATCHES[0]) == {}
    for line, model in enumerate((None, "night", "night", None)):
        store.add_line(BATCHES[0], line, bound_model=model)
    store.add_line(BATCHES[1], 0)
    started_line = StreamName(job_of_line(BATCHES[0], 3))
    store.log.append(started_line, [draft(started())], expected_version=1)
    assert store.views.waiting(BATCHES[0]) == {None: 1, "night": 2}


def test_open_jobs_are_those_without_a_cancel_request(store: Store) -> None:
    lines = [store.add_line(BATCHES[0], line) for line in range(3)]
    store.log.append(lines[1], [draft(JobCancelRequested(reason="api"))], expected_version=1)
    assert store.views.open_jobs(BATCHES[0]) == (JobId(lines[0]), JobId(lines[2]))


def test_lines_are_found_by_their_numbers(store: Store) -> None:
    for line in (0, 15, 16, 17, 256):
        store.add_line(BATCHES[0], line)
    store.add_line(BATCHES[1], 16)
    found = store.views.line_jobs(BATCHES[0], first=15, limit=2)
    assert {line: view.id for line, view in found.items()} == {
        line: job_of_line(BATCHES[0], line) for line in (15, 16)
    }


def test_streams_come_in_either_order_from_any_point(store: Store) -> None:
    for batch_id in BATCHES:
        store.begin(batch_id)
    file = StreamName("file-1")
    created = FileCreated(purpose="batch", bytes=0)
    store.log.append(file, [draft(created)], expected_version=0)
    name = BatchSubmitted.__name__
    streams = store.views.streams
    assert list(streams(name, limit=9)) == NAMES[::-1]
    assert list(streams(name, limit=2)) == [NAMES[3], NAMES[2]]
    assert list(streams(name, limit=9, after=BATCHES[2])) == [NAMES[1], NAMES[0]]
    assert list(streams(name, limit=1, after=BATCHES[1], oldest_first=True)) == [NAMES[2]]
    assert streams(name, limit=9, after="batch-unknown") == ()
    assert streams(name, limit=9, after=file) == ()
    assert streams(FileCreated.__name__, limit=9) == (file,)


def test_unfinished_are_those_that_neither_ended_nor_failed(store: Store) -> None:
    for batch_id in BATCHES:
        store.begin(batch_id, owner=Owner("mine") if batch_id in BATCHES[2:] else None)
    ended = BatchEnded(succeeded=9, errored=0, canceled=0, expired=0)
    failed = BatchFailed(errors=digest_of(b""))
    for batch_id, event in ((BATCHES[1], ended), (BATCHES[2], failed)):
        store.log.append(StreamName(batch_id), [draft(event)], expected_version=1)
    assert store.views.unfinished() == (BATCHES[0], BATCHES[3])
    assert store.views.unfinished(owner=Owner("mine")) == (BATCHES[3],)
    assert store.views.unfinished(owner=Owner("other")) == ()
