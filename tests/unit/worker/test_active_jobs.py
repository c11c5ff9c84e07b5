"""The jobs that a worker runs, and cancellations that come early, late or never."""

from __future__ import annotations

import pytest

from domain.values import JobId
from worker.turn_scheduler import ActiveJobs

JOB = JobId("job-1")


class Handle:
    def __init__(self) -> None:
        self.cancels = 0

    def cancel(self) -> None:
        self.cancels += 1


def test_cancellation_ends_its_attempts_and_no_later_one() -> None:
    active = ActiveJobs()
    for attempt, expected in ((1, 1), (2, 1), (3, 0)):
        with active.claim(JOB):
            handle = Handle()
            active.attach(JOB, handle, attempt=attempt)
            active.cancel(JOB, through=2)
            assert handle.cancels == expected


@pytest.mark.parametrize(("attempt", "expected"), [(2, 1), (3, 0)])
def test_cancellation_before_the_handle_takes_effect_at_once(attempt: int, expected: int) -> None:
    active, handle = ActiveJobs(), Handle()
    with active.claim(JOB):
        active.cancel(JOB, through=2)
        active.cancel(JOB, through=1)
        active.attach(JOB, handle, attempt=attempt)
        assert handle.cancels == expected


def test_cancellation_is_dropped_with_the_claim() -> None:
    active, handle = ActiveJobs(), Handle()
    active.cancel(JOB, through=9)
    with active.claim(JOB):
        active.cancel(JOB, through=9)
    with active.claim(JOB):
        active.attach(JOB, handle, attempt=1)
    assert handle.cancels == 0
