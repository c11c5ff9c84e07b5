"""Which events a full disk refuses."""

from __future__ import annotations

import pytest

from domain.events.batch import FileCreated
from domain.events.event import Event, begins_work, is_new_work
from domain.events.job import JobAttached, JobRetried
from domain.values import digest_of
from tests.support.builders.job_events import completed, started, submitted

UPLOAD = FileCreated(purpose="batch", bytes=1, content=digest_of(b"a"))
OUTPUT = FileCreated(purpose="batch_output", bytes=1)


@pytest.mark.parametrize("event", [submitted(), JobRetried(reason="api"), UPLOAD])
def test_what_a_client_sends_is_new_work(event: Event) -> None:
    assert is_new_work(event)
    assert begins_work(event)


def test_attempts_wait_for_space_and_are_no_new_work() -> None:
    assert not is_new_work(started())
    assert begins_work(started())


@pytest.mark.parametrize("event", [completed(), OUTPUT, JobAttached(reason="retry")])
def test_ends_and_derived_files_use_the_reserve(event: Event) -> None:
    assert not is_new_work(event)
    assert not begins_work(event)
