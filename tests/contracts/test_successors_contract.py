"""The jobs behind a job, on the fake, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.job.listing import JobFilter, waits_for
from domain.values import JobId, Predecessor, StreamName
from tests.support.builders.job_events import draft, submitted
from tests.support.builders.log_stores import STORES, Store, opened_store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def test_pages_have_the_jobs_that_wait_for_another(store: Store) -> None:
    def accept(name: str, **facts: Any) -> None:
        store.log.append(StreamName(name), [draft(submitted(**facts))], expected_version=0)

    def behind(job_id: str, *labels: str) -> list[str]:
        wanted = JobFilter(labels=(waits_for(JobId(job_id)), *labels))
        return [job.id for job in store.views.page(wanted, limit=10).jobs]

    first, second = (Predecessor(name=str(n), job=f"job-{n}") for n in (1, 2))
    for job_id in ("job-1", "job-2"):
        accept(job_id)
    accept("job-3", after=(first, second), labels=("night",))
    accept("job-4", after=(second, replace(second, name="again")))
    assert (behind("job-1"), behind("job-2")) == (["job-3"], ["job-4", "job-3"])
    assert (behind("job-2", "night"), behind("job-3")) == (["job-3"], [])
    third = store.views.get(JobId("job-3"))
    assert third is not None
    assert third.submitted.labels == ("night",)
