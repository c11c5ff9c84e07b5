"""A service that is killed in the middle of an answer and comes back with another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.clients.service_log import ended
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled
from tests.support.processes.service import Service

TOKENS = 800
EVENTS_BEFORE_DEATH = 4
WAIT_S = 120.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two models that take a few milliseconds a token."""
    root = tmp_path_factory.mktemp("models")
    return {
        "day": make_tiny_llama(root / "day", hidden=128, layers=4, context=4096),
        "night": make_tiny_llama(root / "night", hidden=64, layers=3, context=4096),
    }


def submitted(http: httpx.Client, model: str | None) -> str:
    body = {"prompt": "the quick brown fox", "max_tokens": TOKENS, "temperature": 0, "seed": 1}
    reply = http.post("/v1/jobs", json=body if model is None else body | {"model": model})
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def read_a_part(http: httpx.Client, job_id: str) -> str:
    """Read some text of a job; return the id of the last event."""
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        last, seen = "", 0
        for line in response.iter_lines():
            last = line.removeprefix("id: ") if line.startswith("id:") else last
            seen += line.startswith("event: text")
            if seen == EVENTS_BEFORE_DEATH:
                return last
    raise AssertionError(f"{job_id} ended before the service was killed")


def test_answer_begins_anew_and_a_bound_job_waits(
    own_service: Callable[..., Service], models: dict[str, Path]
) -> None:
    service = own_service(SEMANTIC_MODEL__ID=str(models["day"]))
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http:
        job_id = submitted(http, None)
        last = read_a_part(http, job_id)
        bound = submitted(http, "day")
    service.kill()
    again = Service(service.data_dir, env={"SEMANTIC_MODEL__ID": str(models["night"])}).start()
    try:
        with httpx.Client(base_url=again.base_url, timeout=scaled(WAIT_S)) as http:
            job = ended(http, job_id)
            assert (job["status"], job["attempt"]) == ("completed", 2)
            assert (job["bound_model"], job["answered_by"]) == (None, "night")
            fresh = ended(http, submitted(http, None))
            assert job["output"]["text"] == fresh["output"]["text"]
            resumed = http.get(f"/v1/jobs/{job_id}/stream", headers={"last-event-id": last})
            assert '"error":"model_changed"' in resumed.text.replace(" ", "")
            parked = http.get(f"/v1/jobs/{bound}").json()
            assert (parked["bound_model"], parked["answered_by"]) in {("day", None), ("day", "day")}
            assert parked["status"] in {"queued", "running"}
            assert parked["output"] is None
    finally:
        again.stop()
