from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from domain.events.worker import WorkerLost
from domain.values import Predecessor, StreamName, WorkerId
from ops.cli.main import build_app
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.log_files import new_log
from tests.support.fakes.time import FakeClock

JOB = StreamName("job-1")
WORKER = StreamName("worker-1")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    clock = FakeClock()
    with open_log(new_log(tmp_path), clock=clock) as log:
        log.append(JOB, [draft(submitted())], expected_version=0)
        log.append(WORKER, [draft(worker_event())], expected_version=0)
        log.append(JOB, [draft(started())], expected_version=1)
        clock.advance(2)
        lost = WorkerLost(worker=WorkerId("worker-1"), pid=1)
        log.append(WORKER, [draft(lost)], expected_version=1)
        clock.advance(1)
        log.append(JOB, [draft(started(2)), draft(completed(2))], expected_version=2)
    return tmp_path


def _run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        build_app(), ["jobs", "show", *arguments, "--data-dir", str(directory)]
    )


def test_the_story_of_a_job_is_told_without_a_service(directory: Path) -> None:
    result = _run(directory, "job-1", "--story")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "job-1, accepted 2026-01-01 00:00:00 UTC"
    assert "+2,000 ms  attempt 1 ended without a report: worker-1 died" in lines[3]
    assert lines[-1] == "in all 3,000 ms, 1,000 ms of it queued, attempts 2"


def test_the_story_as_json_has_every_step(directory: Path) -> None:
    story = json.loads(_run(directory, "job-1", "--story", "--json").stdout)
    assert [step["what"] for step in story["steps"]] == [
        "accepted",
        "attempt",
        "lost",
        "attempt",
        "prefill",
        "first_token",
        "completed",
    ]
    assert story["ended"]


def test_the_story_names_the_jobs_before_and_behind(directory: Path) -> None:
    with open_log(new_log(directory), clock=FakeClock()) as log:
        edges = (Predecessor(name="a", job="job-1"), Predecessor(name="b", job="job-gone"))
        log.append(StreamName("job-2"), [draft(submitted(after=edges))], expected_version=0)
    assert "followed by job-2 (held)" in _run(directory, "job-1", "--story").stdout.splitlines()
    lines = _run(directory, "job-2", "--story").stdout.splitlines()
    assert lines[1:3] == ["after job-1 (completed)", "after job-gone (not known)"]
    story = json.loads(_run(directory, "job-1", "--story", "--json").stdout)
    edge = {"name": "a", "job": "job-2", "condition": "completed", "status": "held"}
    assert (story["after"], story["successors"]) == ([], [edge])


@pytest.mark.parametrize("job", ["job-none", "worker-1"])
def test_a_job_that_is_not_in_the_log_has_no_story(directory: Path, job: str) -> None:
    result = _run(directory, job, "--story")
    assert result.exit_code == 1
    assert f"job {job} is not in the log" in result.stderr


def test_without_a_service_jobs_are_read_from_the_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMANTIC_SERVER__PORT", "9")
    shown = _run(directory, "job-1")
    assert shown.exit_code == 0, shown.output
    assert ["status", "completed"] in [line.split() for line in shown.stdout.splitlines()]
    assert "no service answers at http://127.0.0.1:9" in shown.stderr
    listing = ["jobs", "ls", "--data-dir", str(directory)]
    listed = CliRunner().invoke(build_app(), listing)
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.splitlines()[1].startswith("job-1")


def test_without_a_log_there_is_no_story(tmp_path: Path) -> None:
    assert _run(tmp_path, "job-1", "--story").exit_code == 1
