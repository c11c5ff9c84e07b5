"""The supervisor is killed with SIGKILL, and started again; its parts go on until then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.clients.service_log import ended
from tests.support.polling import scaled
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.scripted_service import (
    ENDLESS,
    ENDLESS_PACE_S,
    line,
    scripted_service,
)
from tests.support.processes.service import Service

#: Items of the endless answer before the kill, and after the next service has taken over.
ITEMS = 20
SHORT = "All is well."


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    script = [line("Count for ever", ENDLESS, pace_s=ENDLESS_PACE_S), line("Hello", SHORT)]
    # Only the next service ends the parts, however long its imports take.
    outlives = with_constants({}, {"ops.liveness.child.ORPHAN_S": 3600.0})
    running = scripted_service(tmp_path_factory.mktemp("killed"), script, **outlives).start()
    yield running
    assert running.stop() == 0, running.log()


def submitted(http: httpx.Client, prompt: str) -> str:
    body: dict[str, Any] = {
        "model": "claude-any",
        "max_tokens": 5000,
        "temperature": 0,
        "messages": [{"role": "user", "content": prompt}],
    }
    return str(http.post("/v1/jobs", json=body).raise_for_status().json()["id"])


def test_work_goes_on_without_a_supervisor_and_beside_the_start_of_the_next(
    service: Service,
) -> None:
    with (
        httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http,
        JobReader(service.base_url, endless := submitted(http, "Count for ever.")) as reader,
    ):
        reader.wait_for(ITEMS)
        service.process.kill()
        service.process.wait()
        assert ended(http, submitted(http, "Hello."))["output"]["text"] == SHORT
        assert reader.attempts == {1}
        assert reader.connections == 1
        service.start()
        service.wait_taken_over()
        assert ended(http, submitted(http, "Hello again."))["output"]["text"] == SHORT
        reader.wait_for(len(reader.numbered) + ITEMS)
        assert reader.attempts == {1, 2}
        http.post(f"/v1/jobs/{endless}/cancel").raise_for_status()
        job = ended(http, endless)
        assert job["status"] == "cancelled"
        assert ENDLESS.startswith(job["output"]["text"])
        events = http.get("/v1/events", params={"stream": endless}).json()["data"]
    numbers = [event.data["n"] for event in reader.numbered]
    assert numbers == list(range(len(numbers)))
    assert [event["type"] for event in events if event["type"].startswith("Attempt")] == [
        "AttemptStarted",
        "AttemptFailed",
        "AttemptStarted",
    ]
