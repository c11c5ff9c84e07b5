"""A running job as an overview, in its stream and in the status."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

WAIT_S = 60.0


@pytest.fixture
def job(endless: Service) -> Iterator[str]:
    body = {"prompt": "go on", "max_tokens": 100_000, "agent_id": "watched"}
    answer = httpx.post(f"{endless.base_url}/v1/jobs", json=body, timeout=scaled(WAIT_S))
    job_id = str(answer.raise_for_status().json()["id"])
    yield job_id
    httpx.post(f"{endless.base_url}/v1/jobs/{job_id}/cancel", timeout=scaled(WAIT_S))


def test_running_job_shows_its_worker_and_its_tokens(endless: Service, job: str) -> None:
    def rows() -> list[dict[str, Any]]:
        found = httpx.get(f"{endless.base_url}/admin/overview", timeout=scaled(WAIT_S)).json()
        return [row for row in found["running"] if row["job"] == job and row["generated_tokens"]]

    (row,) = wait_until(rows)
    assert (row["agent"], row["phase"], row["model"]) == ("watched", "decode", "semantic-demo")
    assert row["worker"].startswith("worker-")
    assert row["read_tokens"] == row["prompt_tokens"] > 0
    with httpx.stream(
        "GET", f"{endless.base_url}/admin/overview/stream", timeout=scaled(WAIT_S)
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        data = (line[6:] for line in reply.iter_lines() if line.startswith("data: "))
        first, second = json.loads(next(data)), json.loads(next(data))
    assert first["running"][0]["generated_tokens"] < second["running"][0]["generated_tokens"]


@pytest.mark.usefixtures("job")
def test_status_shows_the_load_of_a_running_job(endless: Service) -> None:
    def rates() -> Any:
        return json.loads(_command(endless, "status", "--json").stdout)["rates"]

    def is_alone(found: Any) -> bool:
        # The figures may be of a time when it waited for the end of the job before it.
        return bool(found and found["tokens_per_s"]) and (
            found["running"],
            found["queue_depth"],
        ) == (1, 0)

    wait_until(rates, is_alone)
    plain = _command(endless, "status").stdout
    assert "1 running · 0 waiting" in plain
    assert "\x1b" not in plain


def test_log_lines_of_the_parts_are_kept(endless: Service, job: str) -> None:
    lines = [json.loads(line) for line in _command(endless, "logs", "--json").stdout.splitlines()]
    assert {"api", "worker", "broker"} <= {line["part"] for line in lines}
    assert any(line["message"] == "model_ready" for line in lines)
    assert "go on" not in str(lines)
    about = _command(endless, "logs", "--job", job, "--json").stdout.splitlines()
    assert all(job in line for line in about)


def _command(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = service.semantic(*arguments)
    assert done.returncode == 0, done.stderr
    return done
