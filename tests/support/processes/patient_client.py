"""A client that asks for its job until it has ended, whatever happens to the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from bench.chaos.client import job_body
from bench.chaos.load import sample_requests
from tests.support.processes.service import Service

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
