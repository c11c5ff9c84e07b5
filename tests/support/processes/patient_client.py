"""A client that asks for its job until it has ended, whatever happens to the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from bench.chaos.client import job_body
from bench.chaos.load import sample_requests
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

ENDS_WITHIN_S = 300.0
(REQUEST,) = sample_requests(5, 1)


def answer(service: Service, then: Callable[[], None] = lambda: None) -> str:
    """Submit a job, do ``then`` meanwhile, and return the answer."""
    submitted = wait_until(
        lambda: look(service, "").get("id"),
        within_s=ENDS_WITHIN_S,
        what="an accepted job",
        ignore=httpx.HTTPError,
        describe=service.log,
    )
    then()
    found = wait_until(
        lambda: look(service, submitted),
        lambda job: job.get("status") not in (None, "queued", "running"),
        within_s=ENDS_WITHIN_S,
        what=f"the end of {submitted}",
        ignore=httpx.HTTPError,
        describe=service.log,
    )
    assert found["status"] == "completed", found
    return str(found["output"]["text"])


def look(service: Service, job: str) -> dict[str, Any]:
    """Return a job, or submit it if it has no id yet."""
    with httpx.Client(base_url=service.base_url, timeout=scaled(30)) as client:
        reply = (
            client.get(f"/v1/jobs/{job}")
            if job
            else client.post("/v1/jobs", json=job_body(REQUEST))
        )
        found = reply.json()
        return found if isinstance(found, dict) and reply.status_code < 400 else {}
