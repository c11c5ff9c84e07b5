"""One stage for each test of the supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.supervised import Stage, runs, until


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()
    started = {pid for word in ("start", "standby") for _, pid in stage.journal(word)}
    until(lambda: not any(runs(pid) for pid in started))
