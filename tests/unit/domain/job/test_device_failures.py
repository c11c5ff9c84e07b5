"""Attempts that an error of the GPU ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.events.job import AttemptFailed
from domain.job.state import device_failures, fold
from domain.values import JobId, JobStatus
from tests.support.builders.job_events import started, submitted


@pytest.mark.parametrize(("emitted", "failures"), [((0, 0, 0), 3), ((0, 3, 3), 2), ((0, 0, 4), 1)])
def test_failures_of_the_device_are_not_counted_failures_and_count_while_no_token_comes(
    emitted: tuple[int, ...], failures: int
) -> None:
    lost = [
        event
        for n, tokens in enumerate(emitted, 1)
        for event in (
            replace(started(n), resumed_tokens=tokens),
            AttemptFailed(attempt=n, error="device_failed", message="gone", retryable=True),
        )
    ]
    job = fold(JobId("job-1"), (submitted(), *lost))
    assert (job.status, job.counted_failures, job.deaths_without_progress) == (
        JobStatus.QUEUED,
        0,
        0,
    )
    assert job.device_failures == failures
    assert device_failures(job, emitted[-1] + 1) == 0
