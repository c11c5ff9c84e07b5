"""The state of a batch, and the ids of the jobs of its lines."""

from __future__ import annotations

import pytest

from domain.batch.state import (
    Batch,
    BatchId,
    decide,
    evolve,
    job_of_line,
    line_of_job,
)
from domain.errors import BatchNotEnded
from domain.events.batch import BatchDeleted, BatchFailed
from domain.values import digest_of
from tests.support.builders.job_events import recorded_at

EARLY = BatchId("batch-01a20900000070008000000000000001")
SAME_INSTANT = BatchId("batch-01a20900000070008000000000000002")
LATE = BatchId("batch-01a20900000170008000000000000003")


@pytest.mark.parametrize("line", [0, 9, 10, 15, 16, 255, 1_000_000])
def test_job_of_a_line_has_its_number_and_the_instant_of_its_batch(line: int) -> None:
    job_id = job_of_line(EARLY, line)
    assert line_of_job(job_id) == line
    assert job_id.startswith("job-01a209000000")
    assert len(job_id) == len("job-") + 32


def test_jobs_sort_by_batch_and_line() -> None:
    jobs = [job_of_line(batch, line) for batch in (EARLY, LATE) for line in (0, 1, 10, 16)]
    assert jobs == sorted(jobs)
    between = "job-01a20900000070008000000000000009"
    assert between < job_of_line(LATE, 0)


def test_batches_of_one_instant_have_jobs_of_their_own() -> None:
    assert job_of_line(EARLY, 3) != job_of_line(SAME_INSTANT, 3)


def test_an_ended_batch_is_deleted_once_and_an_open_one_never() -> None:
    batch = Batch(id=EARLY)
    with pytest.raises(BatchNotEnded):
        decide(batch, BatchDeleted())
    failed, deleted = recorded_at(
        (0, BatchFailed(errors=digest_of(b"faults"))), (1, BatchDeleted())
    )
    batch = evolve(batch, failed)
    assert decide(batch, BatchDeleted()) == (BatchDeleted(),)
    assert decide(evolve(batch, deleted), BatchDeleted()) == ()
