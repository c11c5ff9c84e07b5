"""The clock of the machine jumps while a service works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bench.chaos.model import make_exact_model
from bench.chaos.run import environment
from tests.support.builders.log_files import verify
from tests.support.clients.npm import missing
from tests.support.polling import scaled
from tests.support.processes.patient_client import answer
from tests.support.processes.service import Service

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(scaled(1800))]

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
HOUR, YEAR = 3600, 365 * 24 * 3600


def test_a_clock_that_jumps_loses_and_changes_no_answer(
    own_service: Callable[..., Service], tmp_path: Path, redis_url: str
) -> None:
    if not LIBRARIES:
        missing("there is no libfaketime")
    clock = tmp_path / "clock"

    def jump(seconds: int) -> None:
        fresh = clock.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(clock)

    jump(0)
    faked = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        # Redis keeps its own clock: its allocator asks for the time before the library is ready.
        "SEMANTIC_REDIS__URL": redis_url,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    service = own_service(**environment(make_exact_model(tmp_path / "model")), **faked)
    expected = answer(service)
    for seconds in (HOUR, 0, -HOUR, 0, 10 * YEAR, 0, -10 * YEAR, 0):
        assert answer(service, partial(jump, seconds)) == expected
        assert answer(service) == expected
    assert service.stop() == 0
    verify(f"sqlite:///{service.data_dir / 'events.sqlite3'}")
