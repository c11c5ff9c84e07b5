"""Operators change the running service, and workers die meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.polling import WITHIN_S, pause, scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.scripted_service import (
    ENDLESS,
    ENDLESS_PACE_S,
    line,
    scripted_service,
)
from tests.support.processes.service import Service

WAIT_S = 120.0
VALUES = {"batch_window_ms": 2, "max_batch_size": 4, "gap_max_ms": 100}
ONE = {"max_batch_size": 1}
#: Longer than between two pulses of the worker, which report the waiting jobs.
NEWS_S = 2.5


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = scripted_service(
        tmp_path_factory.mktemp("engine control"),
        [line("endless", ENDLESS, pace_s=ENDLESS_PACE_S), line("short", "Done.")],
        **with_constants(
            {"SEMANTIC_MODEL__NAME": "semantic-demo", "SEMANTIC_ENGINE__MAX_BATCH_SIZE": "4"},
            {"api.app.PING_S": 0.2},
        ),
    ).start()
    yield service
    assert service.stop() == 0, service.log()


@pytest.fixture
def http(running: Service) -> Iterator[httpx.Client]:
    """A client; each test leaves the service as it found it."""
    with httpx.Client(base_url=running.base_url, timeout=scaled(WAIT_S)) as client:
        yield client
        for job in _open_jobs(client):
            client.post(f"/v1/jobs/{job['id']}/cancel").raise_for_status()
        client.post("/admin/resume").raise_for_status()
        _tune(client, batch_window_ms=None, max_batch_size=None, gap_max_ms=None)
        wait_until(lambda: not _open_jobs(client))


def _open_jobs(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for status in ("queued", "running"):
        found += http.get("/v1/jobs", params={"status": status}).json()["data"]
    return found


def _submit(http: httpx.Client, prompt: str, **more: Any) -> str:
    answer = http.post("/v1/jobs", json={"prompt": prompt, "max_tokens": 100_000, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def _job(http: httpx.Client, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = http.get(f"/v1/jobs/{job_id}").json()
    return shown


def _engine(http: httpx.Client) -> dict[str, Any]:
    shown: dict[str, Any] = http.get("/admin/engine").json()
    return shown


def _tune(http: httpx.Client, **values: float | None) -> None:
    """Change values, and wait until the worker reports them."""
    wanted = http.patch("/admin/engine", json=values).raise_for_status().json()["values"]
    wait_until(lambda: [one["values"] for one in _engine(http)["workers"]] == [wanted])


def _wait_for(http: httpx.Client, jobs: list[str], *, running: int, place: int) -> None:
    """Wait until so many jobs run, and so many wait in the engine for a place."""

    def states() -> Counter[tuple[str, str | None]]:
        shown = [_job(http, job_id) for job_id in jobs]
        return Counter((job["status"], job["waiting_for"]) for job in shown)

    wanted = +Counter({("running", None): running, ("running", "place"): place})

    def settled() -> Counter[tuple[str, str | None]]:
        if (seen := states()) != wanted:
            return seen
        pause(NEWS_S, reason="a job that was just handed to the worker counts as running")
        return states()

    wait_until(settled, lambda seen: seen == wanted)


def _wait_admission(http: httpx.Client, admission: str) -> None:
    wait_until(lambda: [one["admission"] for one in _engine(http)["workers"]] == [admission])


def _cli(service: Service, *words: str) -> tuple[int, str]:
    done = service.semantic(*words)
    return done.returncode, done.stdout + done.stderr


def test_batch_size_changes_under_load(http: httpx.Client) -> None:
    _tune(http, max_batch_size=1)
    jobs = [_submit(http, f"{number} endless") for number in range(3)]
    _wait_for(http, jobs, running=1, place=2)
    _tune(http, max_batch_size=6)
    _wait_for(http, jobs, running=3, place=0)
    jobs += [_submit(http, f"{number} endless") for number in range(3, 6)]
    _wait_for(http, jobs, running=6, place=0)
    _tune(http, max_batch_size=2)
    jobs.append(_submit(http, "7 endless"))
    wait_until(lambda: _job(http, jobs[6])["waiting_for"] == "place")
    _wait_for(http, jobs[:6], running=6, place=0)
    for job_id in jobs[:4]:
        http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    _wait_for(http, jobs[4:], running=2, place=1)


def test_batch_window_holds_requests_that_come_together(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "short"}], "model": "semantic-demo", "n": 3}
    _tune(http, batch_window_ms=1000)
    http.post("/v1/chat/completions", json=body).raise_for_status()
    ended = http.get("/v1/jobs", params={"status": "completed", "limit": 3}).json()["data"]
    # The answers to one request reach the engine within a fraction of the window.
    assert max(job["timings"]["first_token_ms"] for job in ended) >= 500
    stored = http.get("/v1/events", params={"stream": "engine"}).json()["data"]
    assert stored[-1]["type"] == "EngineTuned"
    assert stored[-1]["data"]["batch_window_ms"] == 1000


def test_pause_lets_running_jobs_go_on_and_survives_the_worker_as_values_do(
    http: httpx.Client, running: Service
) -> None:
    _tune(http, max_batch_size=1)
    before = _submit(http, "endless")
    _wait_for(http, [before], running=1, place=0)
    code, _ = _cli(running, "engine", "--pause", "--reason", "a copy of the disk")
    assert code == 0
    waiting = _submit(http, "short")
    assert _job(http, waiting)["waiting_for"] == "paused"
    assert http.get("/health/ready").json()["checks"]["admission"] == "paused: a copy of the disk"
    running.kill_part("worker.main")
    running.wait_ready()
    _wait_admission(http, "paused")
    assert [one["values"] for one in _engine(http)["workers"]] == [VALUES | ONE]
    _tune(http, max_batch_size=2)
    # It has begun, so it goes on although its worker has died.
    wait_until(lambda: _job(http, before)["attempt"] == 2)
    assert _job(http, waiting)["status"] == "queued"
    assert _cli(running, "engine", "--resume")[0] == 0
    wait_until(lambda: _job(http, waiting)["status"] == "completed")
    _wait_for(http, [before], running=1, place=0)


def test_open_request_waits_with_pings_while_paused(http: httpx.Client) -> None:
    http.post("/admin/pause").raise_for_status()
    _wait_admission(http, "paused")
    body = {
        "model": "semantic-demo",
        "max_tokens": 20,
        "stream": True,
        "messages": [{"role": "user", "content": "short"}],
    }
    pings, text = 0, ""
    with http.stream("POST", "/v1/messages", json=body) as response:
        for one in response.iter_lines():
            if one == "event: ping":
                pings += 1
                if pings == 3:
                    httpx.post(
                        f"{http.base_url}/admin/resume", timeout=scaled(WITHIN_S)
                    ).raise_for_status()
            elif one.startswith("data: "):
                text += json.loads(one[6:]).get("delta", {}).get("text", "")
    assert pings >= 3
    assert text == "Done."


def test_drain_refuses_new_work_and_ends_when_nothing_runs(
    http: httpx.Client, running: Service
) -> None:
    before = _submit(http, "endless")
    _wait_for(http, [before], running=1, place=0)
    code, out = _cli(running, "engine", "--drain", "--wait", "1", "--json")
    assert (code, json.loads(out)["running"]) == (1, 1)
    refused = http.post("/v1/jobs", json={"prompt": "new"})
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert refused.headers["retry-after"]
    _wait_for(http, [before], running=1, place=0)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(_cli, running, "engine", "--drain", "--json")
        http.post(f"/v1/jobs/{before}/cancel").raise_for_status()
        code, out = draining.result(scaled(WAIT_S))
    assert (code, json.loads(out)["running"]) == (0, 0)


def test_commands_show_change_and_reset_values(http: httpx.Client, running: Service) -> None:
    code, out = _cli(running, "engine", "--gap-max-ms", "40", "--json")
    assert (code, json.loads(out)["tuned"]) == (0, ["gap_max_ms"])
    assert [one["values"]["gap_max_ms"] for one in _engine(http)["workers"]] == [40]
    code, out = _cli(running, "engine")
    assert (code, "40 (setting 100)" in out) == (0, True)
    code, out = _cli(running, "engine", "--max-batch-size", "1000")
    assert (code, "max_batch_size" in out or "must be" in out or "256" in out) == (1, True)
    assert _cli(running, "engine", "--reset", "--gap-max-ms", "40")[0] == 2
    code, out = _cli(running, "engine", "--reset", "--json")
    assert (code, json.loads(out)["tuned"]) == (0, [])
