"""The jobs behind a job, and its parent, on the fake, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.audit.timeline import related_jobs
from domain.chat.stored_answer import StoredAnswer
from domain.errors import StaleAttempt
from domain.job.commit import commit, load_job
from domain.job.listing import JobFilter, waits_for
from domain.job.terminal_item import EmittedPrefix, with_inherited
from domain.log.codec import decode_recorded
from domain.values import JobId, Predecessor, StreamName, digest_of
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, Store, opened_store
from tests.support.fakes.time import SequentialIds


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
    after, successors = related_jobs(JobId("job-2"), store.views)
    assert after == ()
    assert [(one.job, one.name) for one in successors] == [
        ("job-4", "2"),
        ("job-4", "again"),
        ("job-3", "2"),
    ]
    third = store.views.get(JobId("job-3"))
    assert third is not None
    assert third.submitted.labels == ("night",)


def test_a_fork_keeps_what_it_takes_over(store: Store) -> None:
    fork = replace(
        submitted(),
        parent=JobId("job-1"),
        parent_tokens=3,
        parent_output=digest_of(b"answer"),
        parent_fingerprint="f",
    )
    store.log.append(StreamName("job-1"), [draft(submitted())], expected_version=0)
    store.log.append(StreamName("job-2"), [draft(fork)], expected_version=0)
    (recorded,) = store.log.load(StreamName("job-2"))
    assert decode_recorded(recorded) == fork
    newest, oldest = store.views.page(JobFilter(), limit=2).jobs
    assert (newest.submitted, oldest.submitted.parent) == (fork, None)


def test_a_fork_begins_with_the_first_tokens_of_the_answer_in_the_log(store: Store) -> None:
    answer = StoredAnswer(text="abcd", token_ids=(1, 2, 3, 4)).to_bytes()
    fork = replace(
        submitted(), parent=JobId("job-1"), parent_tokens=3, parent_output=digest_of(answer)
    )
    ended = replace(completed(), output=digest_of(answer))
    events = [draft(submitted()), draft(started()), draft(ended)]
    payloads = {digest_of(answer): answer}
    store.log.append(StreamName("job-1"), events, expected_version=0, payloads=payloads)
    store.log.append(StreamName("job-2"), [draft(fork)], expected_version=0)
    job = load_job(JobId("job-2"), log=store.log).job
    first = with_inherited(job, EmittedPrefix(), store.log)
    assert (first.token_ids, first.published, first.next_item) == ((1, 2, 3), 0, 0)
    part = with_inherited(job, EmittedPrefix(token_ids=(1, 2), next_item=2), store.log)
    assert (part.token_ids, part.published, part.next_item) == ((1, 2, 3), 2, 2)
    beyond = EmittedPrefix(token_ids=(1, 2, 3, 9), next_item=3)
    assert with_inherited(job, beyond, store.log) == beyond
    assert with_inherited(load_job(JobId("job-1"), log=store.log).job, beyond, store.log) == beyond
    store.log.append(StreamName("job-2"), [draft(started()), draft(ended)], expected_version=1)
    with pytest.raises(StaleAttempt):
        commit(JobId("job-2"), ended, log=store.log, ids=SequentialIds())
