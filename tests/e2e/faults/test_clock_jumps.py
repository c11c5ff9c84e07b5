"""The clock of the machine jumps while a service works."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.chaos.client import job_body
from bench.chaos.load import sample_requests
from bench.chaos.model import make_exact_model
from bench.chaos.run import environment
from tests.support.builders.log_files import verify
from tests.support.processes.service import Service

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
ENDS_WITHIN_S = 300.0
HOUR, YEAR = 3600, 365 * 24 * 3600
(REQUEST,) = sample_requests(5, 1)


def answer(service: Service, then: Callable[[], None] = lambda: None) -> str:
    """Submit a job, do ``then`` meanwhile, and return the answer."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    job = ""
    while time.monotonic() < deadline:
        try:
            found = look(service, job)
        except httpx.HTTPError:
            time.sleep(0.5)
            continue
        if not job and "id" in found:
            job = found["id"]
            then()
        if found.get("status") not in (None, "queued", "running"):
            assert found["status"] == "completed", found
            return str(found["output"]["text"])
        time.sleep(0.2)
    raise AssertionError(f"{job} has no end:\n{service.log()}")


def look(service: Service, job: str) -> dict[str, Any]:
    """Return a job, or submit it if it has no id yet."""
    with httpx.Client(base_url=service.base_url, timeout=30) as client:
        reply = (
            client.get(f"/v1/jobs/{job}")
            if job
            else client.post("/v1/jobs", json=job_body(REQUEST))
        )
        found = reply.json()
        return found if isinstance(found, dict) and reply.status_code < 400 else {}


def test_a_clock_that_jumps_loses_and_changes_no_answer(
    own_service: Callable[..., Service], tmp_path: Path, redis_url: str
) -> None:
    if not LIBRARIES:
        pytest.skip("there is no libfaketime")
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
