"""The service as its users see it: jobs, the log, crashes, and the end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.clients.service_log import ended
from tests.support.polling import scaled
from tests.support.processes.brokers import NO_REDIS_PATH
from tests.support.processes.service import Service

#: On a busy machine an answer may be over when the kill comes; then another job is tried.
KILLS_MAX = 5
LONG = {
    "model": "semantic-demo",
    "max_tokens": 400,
    "temperature": 1.0,
    "seed": 11,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
}

#: A seed with more to say, so that its worker dies long before the end.
LONGER = LONG | {"seed": 13}


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as client:
        yield client


@pytest.fixture
def endless_http(endless: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=endless.base_url, timeout=scaled(60)) as client:
        yield client


def sse(lines: Iterator[str]) -> Iterator[tuple[str | None, str | None, Any]]:
    """Yield (id, event, data) of each event."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line and "data" in fields:
            yield fields.get("id"), fields.get("event"), json.loads(fields["data"])
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def text_of(events: list[tuple[str | None, str | None, Any]]) -> str:
    return "".join(data["text"] for _, kind, data in events if kind == "text")


def test_job_is_accepted_polled_streamed_and_logged(http: httpx.Client) -> None:
    accepted = http.post("/v1/jobs", json=LONG)
    assert accepted.status_code == 202
    job_id = accepted.json()["id"]
    assert accepted.headers["location"] == f"/v1/jobs/{job_id}"
    job = ended(http, job_id)
    assert job["status"] == "completed"
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        events = list(sse(response.iter_lines()))
    numbers = [data["n"] for _, _, data in events]
    assert numbers == list(range(len(events)))
    assert events[-1][1] == "finished"
    assert text_of(events) == job["output"]["text"]
    logged = http.get("/v1/events", params={"stream": job_id}).json()
    assert [event["type"] for event in logged["data"]] == [
        "JobSubmitted",
        "AttemptStarted",
        "JobCompleted",
    ]
    listed = http.get("/v1/jobs", params={"limit": 1}).json()
    assert set(listed) >= {"data", "has_more"}


def test_stream_resumes_after_the_last_event_id_without_loss(http: httpx.Client) -> None:
    job_id = http.post("/v1/jobs", json=LONG | {"seed": 12}).json()["id"]
    first: list[tuple[str | None, str | None, Any]] = []
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        for event in sse(response.iter_lines()):
            first.append(event)
            if len(first) == 5:
                break
    with http.stream(
        "GET", f"/v1/jobs/{job_id}/stream", headers={"last-event-id": str(first[-1][0])}
    ) as response:
        rest = list(sse(response.iter_lines()))
    whole = first + rest
    assert [data["n"] for _, _, data in whole] == list(range(len(whole)))
    assert text_of(whole) == ended(http, job_id)["output"]["text"]


def test_cancelled_job_stops_and_a_second_cancel_changes_nothing(
    endless_http: httpx.Client,
) -> None:
    http = endless_http
    job_id = http.post("/v1/jobs", json=LONG | {"max_tokens": 20_000}).json()["id"]
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        next(sse(response.iter_lines()))
    assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    job = ended(http, job_id)
    assert job["status"] == "cancelled"
    assert http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"


def test_client_that_leaves_ends_its_generation(endless_http: httpx.Client) -> None:
    http = endless_http
    body = LONG | {"stream": True, "max_tokens": 20_000, "temperature": 0}
    with http.stream("POST", "/v1/messages", json=body) as response:
        job_id = response.headers["x-semantic-job"]
        next(response.iter_lines())
    job = ended(http, job_id)
    kinds = [
        event["type"] for event in http.get("/v1/events", params={"stream": job_id}).json()["data"]
    ]
    assert job["status"] == "cancelled"
    assert "JobCancelRequested" in kinds


def test_killed_worker_is_a_pause_and_the_text_is_the_uninterrupted_one(mortal: Service) -> None:
    with httpx.Client(base_url=mortal.base_url, timeout=scaled(60)) as http:
        undisturbed = http.post("/v1/jobs", json=LONGER).json()["id"]
        expected = ended(http, undisturbed)["output"]["text"]
        for _ in range(KILLS_MAX):
            worker = mortal.part("worker")
            job_id = http.post("/v1/jobs", json=LONGER).json()["id"]
            events = []
            with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
                for event in sse(response.iter_lines()):
                    events.append(event)
                    if len(events) == 5:
                        worker.send_signal(signal.SIGKILL)
            assert [data["n"] for _, _, data in events] == list(range(len(events)))
            assert text_of(events) == expected
            job = ended(http, job_id)
            assert job["status"] == "completed"
            if job["attempt"] == 2:
                return
            mortal.wait_ready()
    pytest.fail(f"each of {KILLS_MAX} answers was over when the worker was killed")


def test_killed_api_loses_no_job_and_forgets_no_key(mortal: Service) -> None:
    headers = {"idempotency-key": "order-66"}
    body = {"prompt": "Say hello.", "max_tokens": 8}
    with httpx.Client(base_url=mortal.base_url, timeout=scaled(60)) as http:
        first = http.post("/v1/jobs", json=body, headers=headers).json()["id"]
        job_id = http.post("/v1/jobs", json=LONG).json()["id"]
        mortal.kill_part("api")
        mortal.wait_ready()
        assert ended(http, job_id)["status"] == "completed"
        again = http.post("/v1/jobs", json=body, headers=headers)
        assert again.json()["id"] == first
        refused = http.post("/v1/jobs", json=body | {"max_tokens": 9}, headers=headers)
        assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")


def test_sigkill_of_the_supervisor_leaves_no_orphan_and_the_next_continues_the_log(
    mortal: Service,
) -> None:
    with httpx.Client(base_url=mortal.base_url, timeout=scaled(60)) as http:
        job_id = http.post("/v1/jobs", json=LONG | {"max_tokens": 5}).json()["id"]
        ended(http, job_id)
    children = mortal.descendants()
    assert len(children) >= 3
    os.kill(mortal.process.pid, signal.SIGKILL)
    mortal.process.wait(scaled(10))
    _, alive = psutil.wait_procs(children, timeout=scaled(30))
    assert alive == []
    mortal.start()
    with httpx.Client(base_url=mortal.base_url, timeout=scaled(60)) as http:
        assert http.get(f"/v1/jobs/{job_id}").json()["status"] == "completed"


def test_bundled_broker_serves_and_survives_the_death_of_the_worker(
    own_service: Callable[..., Service],
) -> None:
    service = own_service(PATH=NO_REDIS_PATH)
    assert "valkey-server, private" in service.log()
    with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as http:
        worker = service.part("worker")
        job_id = http.post("/v1/jobs", json=LONGER).json()["id"]
        with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
            events = []
            for event in sse(response.iter_lines()):
                events.append(event)
                if len(events) == 5:
                    worker.send_signal(signal.SIGKILL)
        assert [data["n"] for _, _, data in events] == list(range(len(events)))
        assert text_of(events) == ended(http, job_id)["output"]["text"]
    assert service.stop() == 0


@pytest.mark.parametrize("part", ["worker", "api", "ops.broker"])
def test_each_part_has_a_session_and_signals_of_its_own(service: Service, part: str) -> None:
    process = service.part(part)
    assert os.getsid(process.pid) == process.pid != os.getsid(service.process.pid)
    assert os.getsid(service.process.pid) == service.process.pid
    if sys.platform == "linux":
        descriptors = Path("/proc", str(process.pid), "fd")
        assert str((descriptors / "0").readlink()) == "/dev/null"
        assert (descriptors / "1").readlink() == (descriptors / "2").readlink()
        status = Path("/proc", str(process.pid), "status").read_text()
        (ignored,) = re.findall(r"SigIgn:\s*(\w+)", status)
        assert not int(ignored, 16) & 1 << signal.SIGTERM - 1


def test_taken_port_is_one_clear_line_and_exit_code_78(service: Service, tmp_path: Path) -> None:
    second = Service(tmp_path / "data", env={"SEMANTIC_SERVER__PORT": str(service.port)})
    with pytest.raises(AssertionError, match=rf"port {service.port} .* is taken"):
        second.start()
    assert second.process.returncode == 78
