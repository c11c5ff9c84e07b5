from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from domain.audit.replay import fold_jobs_as_of
from domain.events.job import JobEvent
from domain.job.state import Job
from domain.values import JobStatus, StreamName
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.log.database import reader_engine
from ops.log.reader import LogReader
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.job_histories import histories
from tests.support.builders.log_files import new_log
from tests.support.day_and_night import examples
from tests.support.fakes.time import FakeClock


@examples(5, night=10)
@given(st.lists(histories(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_every_past_is_what_the_live_projection_was_then(
    lives: list[tuple[JobEvent, ...]], order: Any
) -> None:
    steps = [number for number, life in enumerate(lives) for _ in life]
    order.shuffle(steps)
    with tempfile.TemporaryDirectory() as directory:
        url = new_log(Path(directory))
        live: dict[int, tuple[tuple[Job, ...], dict[JobStatus, int]]] = {}
        engine = reader_engine(url)
        with open_log(url, clock=SystemClock()) as log:
            versions = [0] * len(lives)
            for number in steps:
                version = versions[number]
                events = [draft(lives[number][version])]
                log.append(StreamName(f"job-{number}"), events, expected_version=version)
                versions[number] += 1
                live[log.head().position] = log.views.page(limit=1000).jobs, log.views.counts()
            for position, (jobs, counts) in live.items():
                past = fold_jobs_as_of(LogReader(engine).walk(limit=position))
                assert (past.jobs, past.counts()) == (jobs, counts)
        engine.dispose()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    clock = FakeClock()
    with open_log(new_log(tmp_path), clock=clock) as log:
        log.append(StreamName("job-1"), [draft(submitted())], expected_version=0)
        clock.advance(60)
        log.append(StreamName("w"), [draft(worker_event())], expected_version=0)
        log.append(StreamName("job-2"), [draft(submitted())], expected_version=0)
        clock.advance(60)
        log.append(StreamName("job-1"), [draft(started()), draft(completed())], expected_version=1)
    return tmp_path


def _run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments, "--data-dir", str(directory)])


def _json(directory: Path, *arguments: str) -> Any:
    result = _run(directory, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("as_of", "queued", "running", "completed_"),
    [("0", 0, 0, 0), ("1", 1, 0, 0), ("4", 1, 1, 0), ("5", 1, 0, 1), ("1s", 1, 0, 1)],
)
def test_the_status_of_the_past_counts_the_jobs_of_then(
    directory: Path, as_of: str, queued: int, running: int, completed_: int
) -> None:
    report = _json(directory, "status", "--as-of", as_of)
    counts = report["jobs"]
    assert (counts["queued"], counts["running"], counts["completed"]) == (
        queued,
        running,
        completed_,
    )


def test_an_instant_means_what_stood_in_the_log_before_it(directory: Path) -> None:
    report = _json(directory, "status", "--as-of", "2026-01-01T00:01:30")
    assert report["as_of"]["position"] == 3
    assert "position 3" in _run(directory, "status", "--as-of", "3").stdout


def test_the_jobs_of_the_past_are_listed_newest_first(directory: Path) -> None:
    listed = _json(directory, "jobs", "ls", "--as-of", "3")
    assert [(job["id"], job["status"]) for job in listed["data"]] == [
        ("job-2", "queued"),
        ("job-1", "queued"),
    ]
    assert _json(directory, "jobs", "ls", "--as-of", "4", "--status", "running")["data"][0][
        "id"
    ] == ("job-1")
    lines = _run(directory, "jobs", "ls", "--as-of", "5", "--limit", "1").stdout.splitlines()
    assert lines[1].startswith("job-2")


@pytest.mark.parametrize("as_of", ["6", "yesterday"])
def test_a_past_that_is_none_is_refused(directory: Path, as_of: str) -> None:
    assert _run(directory, "status", "--as-of", as_of).exit_code in {1, 2}
