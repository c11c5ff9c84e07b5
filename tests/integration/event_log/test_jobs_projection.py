from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from domain.events.job import JobEvent
from domain.job.listing import JobFilter
from domain.job.state import Job, fold_recorded
from domain.values import JobId, JobStatus, StreamName
from ops.clock import SystemClock
from ops.log.projections import fold
from ops.log.projections import fold as projection_fold
from ops.log.projections import jobs as jobs_module
from ops.log.projections.rebuild import rebuild_projections
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.job_histories import histories
from tests.support.builders.log_files import fill, new_log, raw_connection
from tests.support.day_and_night import examples


@pytest.fixture
def url(tmp_path: Path) -> str:
    return new_log(tmp_path)


@pytest.fixture
def log(url: str) -> Iterator[SqlEventLog]:
    with open_log(url, clock=SystemClock()) as opened:
        yield opened


def _listed(log: SqlEventLog) -> tuple[Job, ...]:
    return log.views.page(limit=1000).jobs


def _folded(log: SqlEventLog) -> tuple[Job, ...]:
    """The same list, made by nothing but the pure fold; newest acceptance first."""
    views: dict[str, Job] = {}
    for event in log.select(limit=10_000):
        if event.stream.startswith("job-"):
            views[event.stream] = fold_recorded(views.get(event.stream), event)
    return tuple(reversed(views.values()))


def _rows(url: str) -> list[Any]:
    with closing(raw_connection(url)) as raw:
        return list(raw.execute("SELECT * FROM jobs ORDER BY accepted_position"))


@examples(10, night=25)
@given(st.lists(histories(), max_size=5), st.randoms(use_true_random=False))
def test_live_rebuilt_and_folded_jobs_are_the_same(
    lives: list[tuple[JobEvent, ...]], order: Any
) -> None:
    steps = [number for number, life in enumerate(lives) for _ in life]
    order.shuffle(steps)
    with tempfile.TemporaryDirectory() as directory:
        url = new_log(Path(directory))
        with open_log(url, clock=SystemClock()) as log:
            versions = [0] * len(lives)
            for number in steps:
                version = versions[number]
                log.append(
                    StreamName(f"job-{number}"),
                    [draft(lives[number][version])],
                    expected_version=version,
                )
                versions[number] += 1
            live, rows = _listed(log), _rows(url)
            assert live == _folded(log)
            rebuild_projections(url)
            assert _listed(log) == live
            assert _rows(url) == rows


def test_a_rebuild_mends_a_list_that_was_spoiled(log: SqlEventLog, url: str) -> None:
    fill(log)
    log.append(StreamName("worker-1"), [draft(worker_event())], expected_version=0)
    good = _listed(log)
    with closing(raw_connection(url)) as raw:
        raw.execute("UPDATE jobs SET status = 'queued' WHERE id = 'job-2'")
        raw.execute("DELETE FROM jobs WHERE id = 'job-3'")
    assert _listed(log) != good

    assert rebuild_projections(url) == 16
    assert _listed(log) == good


def test_a_rebuild_tells_how_far_it_is(
    log: SqlEventLog, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    monkeypatch.setattr(projection_fold, "CATCH_UP_EVENTS_MAX", 6)
    steps: list[tuple[int, int]] = []
    rebuild_projections(url, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(6, 15), (12, 15), (15, 15)]


def test_jobs_that_change_during_a_rebuild_are_right_after_it(
    log: SqlEventLog, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    log.append(StreamName("job-open"), [draft(submitted())], expected_version=0)
    before = _listed(log)
    monkeypatch.setattr(projection_fold, "CATCH_UP_EVENTS_MAX", 6)
    seen: list[bool] = []

    def meanwhile(done: int, total: int) -> None:
        if done == 12:
            seen.append(_listed(log) == before)  # nobody sees a half-built list
            log.append(StreamName("job-open"), [draft(started())], expected_version=1)
            log.append(StreamName("job-new"), [draft(submitted())], expected_version=0)
        del total

    rebuild_projections(url, progress=meanwhile)
    log.append(StreamName("job-open"), [draft(completed())], expected_version=2)

    assert seen == [True]
    assert _listed(log) == _folded(log)
    view = log.views.get(JobId("job-open"))
    assert view is not None
    assert view.status is JobStatus.COMPLETED


def test_a_rebuild_that_was_cut_short_is_begun_again(
    log: SqlEventLog, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    good = _listed(log)
    monkeypatch.setattr(projection_fold, "CATCH_UP_EVENTS_MAX", 6)

    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt(done, total)

    with pytest.raises(KeyboardInterrupt):
        rebuild_projections(url, progress=give_up)
    assert _listed(log) == good
    rebuild_projections(url)
    assert _listed(log) == good
    with closing(raw_connection(url)) as raw:
        assert raw.execute("SELECT count(*) FROM jobs_next").fetchone() == (0,)
        mine = "SELECT name, position FROM checkpoints WHERE name LIKE 'jobs%'"
        assert raw.execute(mine).fetchall() == [("jobs", 15)]


def test_a_list_that_is_behind_catches_up_when_the_log_is_opened(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(url, clock=SystemClock()) as log:
        fill(log)
        good = _listed(log)
    _set_back(url, position=3)
    monkeypatch.setattr(projection_fold, "CATCH_UP_EVENTS_MAX", 5)

    with open_log(url, clock=SystemClock()) as log:
        assert _listed(log) == good
    assert "at 3 of 15" in caplog.text


def test_a_list_that_fell_behind_while_open_catches_up_with_the_next_append(
    log: SqlEventLog, url: str
) -> None:
    fill(log)
    _set_back(url, position=3)
    log.append(StreamName("job-new"), [draft(submitted())], expected_version=0)
    assert _listed(log) == _folded(log)


def test_a_list_of_another_version_is_rebuilt_when_the_log_is_opened(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(url, clock=SystemClock()) as log:
        fill(log)
        good = _listed(log)
    with closing(raw_connection(url)) as raw:
        raw.execute("UPDATE jobs SET model = 'spoiled'")
    later = fold.PROJECTIONS_VERSION + 1
    monkeypatch.setattr(fold, "PROJECTIONS_VERSION", later)

    with open_log(url, clock=SystemClock()) as log:
        assert _listed(log) == good
    assert "rebuilding" in caplog.text
    with closing(raw_connection(url)) as raw:
        version = raw.execute("SELECT version FROM checkpoints WHERE name = 'jobs'").fetchone()
    assert version == (later,)


def test_a_list_of_a_newer_program_is_left_to_it(log: SqlEventLog, url: str) -> None:
    fill(log)
    with closing(raw_connection(url)) as raw:
        raw.execute("UPDATE checkpoints SET version = 99")
    before = _rows(url)
    log.append(StreamName("job-new"), [draft(submitted())], expected_version=0)
    assert _rows(url) == before
    assert log.head().position == 16


def _set_back(url: str, *, position: int) -> None:
    """Leave the list as it was when only the first events had been folded in."""
    with closing(raw_connection(url)) as raw:
        raw.execute("UPDATE checkpoints SET position = ?", (position,))
        raw.execute("DELETE FROM jobs WHERE accepted_position > ?", (position,))


def test_pages_by_labels_walk_along_the_index_and_survive_a_rebuild(
    log: SqlEventLog, url: str
) -> None:
    for number in range(3):
        event = draft(submitted(labels=("night", f"number={number}")))
        log.append(StreamName(f"job-{number}"), [event], expected_version=0)
    wanted = JobFilter(labels=("number=1", "night"))
    before = log.views.page(wanted, limit=9)
    assert [job.id for job in before.jobs] == ["job-1"]
    rebuild_projections(url)
    assert log.views.page(wanted, limit=9) == before
    query = jobs_module._page((), 2, has_cursor=False).clause
    text = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True}))
    with closing(raw_connection(url)) as raw:
        plan = [row[-1] for row in raw.execute("EXPLAIN QUERY PLAN " + text, (None,) * 4)]
    assert not [step for step in plan if step.startswith(("SCAN", "USE TEMP"))], plan
