"""Kills around held jobs, chains and schedules: each runs once, and none before its time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.clients.job_reader import WAIT_S
from tests.support.polling import scaled, wait_until
from tests.support.processes.scripted_service import line, scripted_service
from tests.support.processes.service import Service

FIRST, SECOND = "The first answer.", "The second answer."
#: An instant of the schedule may be a minute away.
SCHEDULE_S = 60.0 + WAIT_S
HOUR_S = 3600


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    script = [line("Begin", FIRST), line(FIRST, SECOND)]
    running = scripted_service(tmp_path_factory.mktemp("held"), script).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as client:
        yield client


def submitted(http: httpx.Client, prompt: str, **more: Any) -> str:
    body = {"prompt": prompt, "max_tokens": 64, "temperature": 0} | more
    return str(http.post("/v1/jobs", json=body).raise_for_status().json()["id"])


def job(http: httpx.Client, job_id: str) -> dict[str, Any]:
    return dict(http.get(f"/v1/jobs/{job_id}").raise_for_status().json())


def completed(http: httpx.Client, job_id: str) -> dict[str, Any]:
    return wait_until(
        lambda: job(http, job_id),
        lambda one: one["status"] not in {"held", "queued", "running"},
        within_s=WAIT_S,
        what=f"the end of {job_id}",
        ignore=httpx.HTTPError,
    )


def events(http: httpx.Client, **query: str) -> list[dict[str, Any]]:
    return list(http.get("/v1/events", params={"limit": "1000"} | query).json()["data"])


def types(http: httpx.Client, job_id: str) -> list[str]:
    return [event["type"] for event in events(http, stream=job_id)]


def test_killed_processes_release_each_job_once_and_leave_one_for_an_instant(
    service: Service, http: httpx.Client, pytestconfig: pytest.Config
) -> None:
    is_nightly = pytestconfig.getoption("--nightly")
    often = {"name": "often", "cron": "* * * * *", "job": {"prompt": "Begin.", "max_tokens": 64}}
    schedule = http.post("/v1/schedules", json=often).raise_for_status().json()["id"]
    later = submitted(http, "Begin.", start_after=HOUR_S)
    never = submitted(http, "Go on from {{after.0.text}}", after=[later])
    soon = submitted(http, "Begin.", start_after=2)
    after = submitted(http, "Go on from {{after.0.text}}", after=[soon])
    for part in ("api", "worker"):
        service.kill_part(part)
    service.wait_ready()
    assert completed(http, soon)["output"]["text"] == FIRST
    if is_nightly:
        service.kill_part("api")
        service.wait_ready()
    assert completed(http, after)["output"]["text"] == SECOND
    fired = wait_until(
        lambda: events(http, stream=schedule, type="ScheduleFired"),
        within_s=SCHEDULE_S,
        ignore=httpx.HTTPError,
    )[0]["data"]
    for part in ("worker", "api") if is_nightly else ("api",):
        service.kill_part(part)
    service.wait_ready()
    for one in (soon, after):
        assert types(http, one).count("JobReleased") == 1
        assert types(http, one).count("JobCompleted") == 1
    for one in (later, never):
        assert job(http, one)["status"] == "held"
        assert types(http, one) == ["JobSubmitted"]
    http.post(f"/v1/schedules/{schedule}/pause").raise_for_status()
    all_fired = events(http, stream=schedule, type="ScheduleFired")
    for firing in all_fired:
        done = completed(http, firing["data"]["job"])
        assert (done["status"], done["output"]["text"]) == ("completed", FIRST)
    jobs = [one["stream"] for one in events(http, type="JobSubmitted")]
    by_hand = [later, never, soon, after]
    assert sorted(jobs) == sorted([*by_hand, *(one["data"]["job"] for one in all_fired)])
    assert len({one["data"]["due"] for one in all_fired}) == len(all_fired)
    assert fired["due"] in {one["data"]["due"] for one in all_fired}
