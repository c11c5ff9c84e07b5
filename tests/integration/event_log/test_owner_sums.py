"""What each key has in the log: open jobs, and stored texts and files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from domain.batch.jsonl import pack
from domain.events.batch import FileCreated, FileDeleted
from domain.events.event import Event
from domain.values import Owner, StreamName, digest_of
from ops.adapters.event_log.sql_event_log import SqlEventLog, open_log
from ops.clock import SystemClock
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log

MINE, OTHER = Owner("mine"), Owner("other")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlEventLog]:
    with open_log(new_log(tmp_path), clock=SystemClock()) as opened:
        yield opened


def _append(log: SqlEventLog, stream: str, event: Event, version: int, *texts: bytes) -> None:
    payloads = {digest_of(text): text for text in texts}
    log.append(StreamName(stream), [draft(event)], expected_version=version, payloads=payloads)


def _submit(log: SqlEventLog, job: str, owner: Owner | None, text: bytes) -> None:
    _append(log, job, replace(submitted(), owner=owner, request=digest_of(text)), 0, text)


def test_jobs_and_texts_of_an_owner_are_summed(log: SqlEventLog) -> None:
    sums = log.owner_sums
    assert (sums.open_jobs(MINE), sums.stored_bytes(MINE)) == (0, 0)
    _submit(log, "job-1", MINE, b"x" * 1000)
    _submit(log, "job-2", MINE, b"x" * 1000)  # the same text is stored once
    _submit(log, "job-3", OTHER, b"y" * 50)
    _submit(log, "job-4", None, b"z" * 7)
    assert (sums.open_jobs(MINE), sums.stored_bytes(MINE)) == (2, 1000)
    answer = b"answer"
    _append(log, "job-1", started(), 1)
    _append(log, "job-1", replace(completed(), output=digest_of(answer)), 2, answer)
    assert (sums.open_jobs(MINE), sums.stored_bytes(MINE)) == (1, 1006)
    assert (sums.open_jobs(OTHER), sums.stored_bytes(OTHER)) == (1, 50)


def test_files_count_until_they_are_deleted_and_results_do_not(log: SqlEventLog) -> None:
    packed = pack(b'{"a": 1}\n' * 10)
    facts = FileCreated(purpose="batch", filename="f", bytes=90, content=packed.digest, owner=MINE)
    _append(log, "file-1", facts, 0, *packed.payloads.values())
    output = FileCreated(purpose="batch_output", filename="o", bytes=500, owner=MINE)
    _append(log, "file-2", output, 0)
    assert log.owner_sums.stored_bytes(MINE) == 90
    _append(log, "file-1", FileDeleted(), 1)
    assert log.owner_sums.stored_bytes(MINE) == 0
