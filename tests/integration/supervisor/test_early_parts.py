"""Parts that import while the broker starts: real processes, real signals."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.polling import scaled
from tests.support.processes.supervised import DEADLINE_S, Stage, runs, until


def early_parts(stage: Stage) -> dict[str, int]:
    """Start a service whose broker does not answer; return the parts that wait, once both do."""
    (stage.directory / "broker.held").touch()
    stage.serve()
    return until(lambda: len(found := dict(stage.journal("standby"))) == 2 and found)  # type: ignore[no-any-return] # returns what holds


def test_worker_and_api_import_while_the_broker_starts(stage: Stage) -> None:
    early = early_parts(stage)
    assert set(early) == {"worker", "api"}
    assert {role for role, _ in stage.journal("start")} <= {"broker"}
    (stage.directory / "broker.held").unlink()
    record = stage.ready()
    assert {role: record["parts"][role]["pid"] for role in early} == early
    assert [stage.starts_of(role) for role in early] == [[pid] for pid in early.values()]
    # They learn the address of the broker when they are activated.
    assert until(lambda: f"url {record['broker_url']}\n" in stage.text("stderr"))


def test_part_that_dies_while_the_broker_starts_is_started_again(stage: Stage) -> None:
    early = early_parts(stage)
    os.kill(early["worker"], signal.SIGKILL)
    until(lambda: not runs(early["worker"]))
    (stage.directory / "broker.held").unlink()
    assert stage.ready()["parts"]["worker"]["pid"] != early["worker"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_end_while_the_broker_starts_leaves_no_part(stage: Stage, number: int) -> None:
    early = early_parts(stage)
    stage.started[0].send_signal(number)
    assert stage.started[0].wait(scaled(DEADLINE_S)) == (0 if number == signal.SIGTERM else -9)
    until(lambda: not any(runs(pid) for pid in early.values()))
    assert not any(role in early for role, _ in stage.journal("start"))
