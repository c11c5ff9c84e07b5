"""The step that outlives its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.values import WorkerId
from worker.engine.scheduling.step_watch import StepKind, StepSize
from worker.liveness.stuck_step import LastStepFile, read_last_step

MINE, OTHER = WorkerId("worker-" + "a" * 32), WorkerId("worker-" + "b" * 32)
STEP = StepSize(StepKind.PREFILL, 3, 2051)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.step"


def test_next_worker_reads_the_step_in_which_the_last_one_died(path: Path) -> None:
    file = LastStepFile(path, MINE)
    file.write(STEP)
    found = read_last_step(path, MINE)
    assert found is not None
    assert (found.kind, found.rows, found.tokens, found.is_stuck) == ("prefill", 3, 2051, False)
    file.mark_stuck()
    stuck = read_last_step(path, MINE)
    assert stuck is not None
    assert stuck.is_stuck


def test_no_step_is_read_of_a_worker_that_ran_none(path: Path) -> None:
    assert read_last_step(path, MINE) is None
    with LastStepFile(path, MINE) as file:
        assert read_last_step(path, MINE) is None
        file.write(STEP)
        file.write(None)
        assert read_last_step(path, MINE) is None
        file.write(STEP)
        assert read_last_step(path, OTHER) is None
    assert read_last_step(path, MINE) is None


@pytest.mark.parametrize("content", [b"", b"short", b"\1" * 200])
def test_damaged_file_names_no_step(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_last_step(path, MINE) is None
