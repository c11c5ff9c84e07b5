from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from domain.log.record import EventFilter
from domain.values import StreamName
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.log import reader
from ops.log.database import reader_engine
from ops.log.migrate import expected
from ops.log.reader import LogReader, follow
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.builders.job_events import draft, submitted, worker_event
from tests.support.builders.log_files import fill, new_log, raw_connection
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled

WORKER = StreamName("worker-1")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SEMANTIC_LOG__URL", raising=False)
    return tmp_path


@pytest.fixture
def url(directory: Path) -> str:
    return new_log(directory)


@pytest.fixture
def log(url: str) -> Iterator[SqlEventLog]:
    with open_log(url, clock=SystemClock()) as opened:
        fill(opened)
        opened.append(WORKER, [draft(worker_event())], expected_version=0)
        yield opened


def _run(*arguments: str) -> Result:
    app = build_app({"log"})
    return CliRunner().invoke(app, arguments)


def _objects(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_ls_lists_and_filters(log: SqlEventLog) -> None:
    assert len(_objects(_run("log", "ls", "--json"))) == log.head().position == 16
    listed = _objects(
        _run("log", "ls", "--json", "--type", "JobCompleted", "--after", "3", "--limit", "2")
    )
    assert [one["position"] for one in listed] == [6, 9]
    assert [one["type"] for one in _objects(_run("log", "ls", "--json", "--stream", WORKER))] == [
        "WorkerDraining"
    ]


def test_ls_pages_through_more_than_one_page(
    log: SqlEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log
    monkeypatch.setattr(reader, "PAGE_EVENTS", 3)
    listed = _objects(_run("log", "ls", "--json", "--limit", "8"))
    assert [one["position"] for one in listed] == list(range(1, 9))


def test_a_line_for_people_names_position_stream_and_type(log: SqlEventLog) -> None:
    assert log
    result = _run("log", "ls", "--limit", "1")
    (line,) = result.stdout.splitlines()
    assert line.split()[0] == "1"
    assert "job-0" in line
    assert "JobSubmitted" in line
    assert line.endswith("}")


def test_ls_filters_by_agent_and_time(url: str) -> None:
    clock = FakeClock()
    with open_log(url, clock=clock) as log:
        for number, agent in enumerate(("a", "b", "a")):
            log.append(
                StreamName(f"job-{number}"), [draft(submitted(agent=agent))], expected_version=0
            )
            clock.advance(60)

    def positions(*options: str) -> list[object]:
        return [one["position"] for one in _objects(_run("log", "ls", "--json", *options))]

    assert positions("--agent", "a") == [1, 3]
    assert positions("--agent", "c") == []
    assert positions("--since", "2026-01-01T00:01:00") == [2, 3]
    assert positions("--until", "2026-01-01T01:01:00+01:00") == [1]
    assert positions("--job", "job-1", "--agent", "b") == [2]
    assert positions("--since", "1s") == []


@pytest.mark.parametrize("text", ["yesterday", "10y", "2026-13-01", "9" * 9 + "w"])
def test_an_instant_that_is_none_is_refused(log: SqlEventLog, text: str) -> None:
    assert log
    result = _run("log", "ls", "--since", text)
    assert result.exit_code == 2
    assert "ISO 8601" in result.stderr


def test_show_prints_one_event_and_whether_it_is_as_written(log: SqlEventLog, url: str) -> None:
    assert log
    (shown,) = _objects(_run("log", "show", "3", "--json"))
    assert (shown["position"], shown["hash_fits"]) == (3, True)
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER events_no_update")
        raw.execute("UPDATE events SET correlation_id = 'x' WHERE position = 3")
    assert "NO: it was changed" in _run("log", "show", "3").stdout
    assert _run("log", "show", "99").exit_code == 1


def test_tail_without_following_shows_the_last_events(log: SqlEventLog) -> None:
    assert log
    listed = _objects(_run("log", "ls", "--last", "2", "--json"))
    assert [one["position"] for one in listed] == [15, 16]


def test_verify_passes_a_whole_log(log: SqlEventLog) -> None:
    result = _run("log", "verify")
    assert result.exit_code == 0
    assert "16 events verify" in result.stdout
    (report,) = _objects(_run("log", "verify", "--json"))
    assert (report["ok"], report["events"], report["hash"]) == (True, 16, log.head().hash)


def test_verify_names_the_first_bad_position_and_fails(log: SqlEventLog, url: str) -> None:
    assert log
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER events_no_update")
        raw.execute("UPDATE events SET correlation_id = 'x' WHERE position = 7")
    result = _run("log", "verify")
    assert result.exit_code == 1
    assert "position 7" in result.stderr
    result = _run("log", "verify", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["position"] == 7


def test_rebuild_makes_the_list_again(log: SqlEventLog, url: str) -> None:
    with closing(raw_connection(url)) as raw:
        raw.execute("DELETE FROM jobs")
    result = _run("log", "upgrade", "--rebuild")
    assert (result.exit_code, result.stdout) == (0, "projections rebuilt from 16 events\n")
    assert len(log.views.page(limit=10).jobs) == 5


@pytest.mark.parametrize(
    "words", [("ls",), ("ls", "--follow"), ("show",), ("verify",), ("upgrade", "--rebuild")]
)
def test_without_a_log_there_is_one_line_and_nothing_is_created(
    directory: Path, words: tuple[str, ...]
) -> None:
    result = _run("log", *words)
    assert result.exit_code == 1
    assert result.stderr == f"there is no event log at {directory / 'events.sqlite3'}\n"
    assert list(directory.iterdir()) == []


def test_db_upgrade_creates_the_tables_once(directory: Path) -> None:
    assert _run("log", "upgrade", "--check").exit_code == 1
    result = _run("log", "upgrade")
    assert result.stdout == f"event log upgraded from nothing to schema {expected()}\n"
    assert (directory / "events.sqlite3").exists()
    assert _run("log", "upgrade").stdout == f"event log already at schema {expected()}\n"
    assert _run("log", "upgrade", "--check").exit_code == 0


def test_a_follower_sees_each_new_event_once(log: SqlEventLog, url: str) -> None:
    engine = reader_engine(url)
    stopped = threading.Event()
    seen = follow(LogReader(engine), EventFilter(stream=WORKER), after=15, stopped=stopped)
    assert next(seen).position == 16
    threading.Timer(
        0.1, lambda: log.append(WORKER, [draft(worker_event())], expected_version=1)
    ).start()
    assert next(seen).position == 17
    stopped.set()
    assert list(seen) == []
    engine.dispose()


def test_an_interrupted_tail_ends_well(log: SqlEventLog) -> None:
    code = "from ops.cli.main import build_app; build_app({'log'})()"
    command = [sys.executable, "-c", code, "log", "ls", "--follow", "-n", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["position"] == 16
        log.append(WORKER, [draft(worker_event())], expected_version=1)
        assert json.loads(follower.stdout.readline())["position"] == 17
        follower.send_signal(signal.SIGINT)
        assert follower.wait(scaled(30)) == 0
