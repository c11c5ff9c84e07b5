"""What stays of a failed run."""

from __future__ import annotations

import json
from pathlib import Path

from bench.soak.__main__ import result_of
from bench.soak.evidence import ERRORS_MAX, errors_of, keep
from bench.soak.load import Record


def write_log(directory: Path, *lines: object) -> Path:
    file = directory / "data.serve.log"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_errors_are_found_with_their_tracebacks(tmp_path: Path) -> None:
    crash = {"level": "error", "message": "attempt_crashed", "exception": "x" * 10_000 + "the end"}
    fault = {"level": "warning", "message": "generation_failed", "exception": "Traceback"}
    calm = {"level": "warning", "message": "worker_lost"}
    log = write_log(tmp_path, "no json", "[]", *map(json.dumps, (calm, crash, fault)))
    first, second = errors_of(log)
    assert first["message"] == "attempt_crashed"
    assert first["exception"].endswith("the end")
    assert len(first["exception"]) < 10_000
    assert second["message"] == "generation_failed"
    many = write_log(tmp_path, *[json.dumps(crash)] * 2 * ERRORS_MAX)
    assert len(errors_of(many)) == ERRORS_MAX


def test_logs_of_the_service_and_its_events_stay(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    (data / "logs" / "worker.log").write_text("a line")
    for name in ("events.sqlite3", "events.sqlite3-wal", "other"):
        (data / name).write_text(name)
    kept = keep(data, write_log(tmp_path, "printed"), tmp_path / "failed")
    found = {file.relative_to(kept).as_posix() for file in kept.rglob("*") if file.is_file()}
    assert found == {"data.serve.log", "events.sqlite3", "events.sqlite3-wal", "logs/worker.log"}
    assert (kept / "data.serve.log").read_text() == "printed\n"


def test_run_with_an_error_in_its_log_fails() -> None:
    crash = {"level": "error", "message": "attempt_crashed"}
    calm = result_of([], Record(), [], [], minutes=1)
    assert (calm["passed"], calm["errors"]) == (True, [])
    assert not result_of([], Record(), [], [crash], minutes=1)["passed"]
