"""One stage for each test of the supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.prepared_supervisors import PreparedSupervisors
from tests.support.processes.supervised import Stage, runs, until


@pytest.fixture(scope="session")
def prepared_supervisors() -> Iterator[PreparedSupervisors]:
    prepared = PreparedSupervisors()
    yield prepared
    prepared.close()


@pytest.fixture
def stage(tmp_path: Path, prepared_supervisors: PreparedSupervisors) -> Iterator[Stage]:
    stage = Stage(tmp_path, prepared_supervisors)
    yield stage
    stage.close()
    started = {pid for word in ("start", "standby") for _, pid in stage.journal(word)}
    until(lambda: not any(runs(pid) for pid in started))
