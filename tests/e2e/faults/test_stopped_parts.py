"""Parts stand still for longer than their leases."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench.chaos.client import job_body
from bench.chaos.load import sample_requests
from bench.chaos.model import make_exact_model
from bench.chaos.run import environment
from tests.support.builders.log_files import verify
from tests.support.processes.service import Service

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

#: Longer than any lease: workers of others count as lost after 15 s.
STOPPED_S = 20.0
ENDS_WITHIN_S = 300.0
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


def test_every_part_may_stand_still_for_longer_than_its_lease(
    own_service: Callable[..., Service], tmp_path: Path
) -> None:
    service = own_service(**environment(make_exact_model(tmp_path / "model")))
    expected = answer(service)

    def stop(part: psutil.Process) -> None:
        part.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        if part.is_running():
            part.send_signal(signal.SIGCONT)

    for name in ("worker.main", "api.main", "ops.broker"):
        assert answer(service, partial(stop, service.part(name))) == expected
        assert answer(service) == expected
    (server,) = service.part("ops.broker").children()
    assert answer(service, partial(stop, server)) == expected
    assert answer(service, partial(stop, psutil.Process(service.process.pid))) == expected
    assert answer(service) == expected
    assert service.stop() == 0
    verify(f"sqlite:///{service.data_dir / 'events.sqlite3'}")
