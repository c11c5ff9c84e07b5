"""The broker dies, forgets everything or comes back empty; accepted jobs do not notice."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis

from domain.values import Priority
from ops.broker.client import Keys, connect
from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.clients.service_log import ended
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import now_s, scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

pytestmark = pytest.mark.redis

_log = logging.getLogger(__name__)

TOKENS = 300
#: More than the worker takes, so that one waits in the broker.
JOBS = 3


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    model = make_tiny_llama(
        tmp_path_factory.mktemp("models") / "tiny", hidden=128, layers=4, context=4096
    )
    running = Service(
        tmp_path_factory.mktemp("brokerless") / "data",
        env=with_constants(
            {"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_ENGINE__MAX_BATCH_SIZE": "1"},
            {
                "worker.actors.INTERACTIVE_THREADS": 2,
                # Only what is looked for at once is found in time.
                "worker.process.RECONCILE_S": 3600.0,
            },
        ),
    ).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as client:
        yield client


@pytest.fixture(scope="module")
def undisturbed(service: Service) -> str:
    """Return what the job says when nothing happens."""
    with (
        httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http,
        JobReader(service.base_url, submitted(http)) as reader,
    ):
        text = reader.whole()
    assert text
    return text


def body_of(tokens: int) -> dict[str, Any]:
    return {
        "model": "claude-any",
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": 11,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
    }


def submitted(http: httpx.Client, tokens: int = TOKENS) -> str:
    reply = http.post("/v1/jobs", json=body_of(tokens))
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def types(http: httpx.Client, job_id: str) -> list[str]:
    found = http.get("/v1/events", params={"stream": job_id}).json()["data"]
    return [event["type"] for event in found]


def told(http: httpx.Client, job_id: str) -> tuple[str, str]:
    """Return text and last event of a job's stream."""
    text, kind = "", ""
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                item = json.loads(line.removeprefix("data: "))
                text, kind = text + item.get("text", ""), item["kind"]
    return text, kind


def broker_of(service: Service) -> redis.Redis:
    return connect((service.data_dir / "broker.url").read_text().strip())


def assert_done_once(http: httpx.Client, jobs: list[str], text: str) -> None:
    for job_id in jobs:
        job = ended(http, job_id)
        assert (job["status"], job["output"]["text"]) == ("completed", text)
        assert types(http, job_id).count("JobCompleted") == 1


def test_flushed_broker_costs_no_job_and_no_word(
    service: Service, http: httpx.Client, undisturbed: str
) -> None:
    jobs = [submitted(http) for _ in range(JOBS)]
    with JobReader(service.base_url, jobs[0]) as reader:
        reader.wait_for(20)
        broker_of(service).flushall()
        # Whoever comes now finds the beginning gone, and gets the whole when it is done.
        assert told(http, jobs[0]) == (undisturbed, "finished")
        assert reader.whole() == undisturbed
    assert reader.connections == 1
    assert_done_once(http, jobs, undisturbed)


def test_stream_of_an_ended_job_outlives_its_items(
    service: Service, http: httpx.Client, undisturbed: str
) -> None:
    job_id = submitted(http)
    ended(http, job_id)
    broker_of(service).flushall()
    assert told(http, job_id) == (undisturbed, "finished")


@pytest.mark.parametrize(
    "comes_back", [pytest.param("as it was", marks=pytest.mark.nightly), "empty"]
)
def test_dead_broker_delays_jobs_and_loses_none(
    service: Service,
    http: httpx.Client,
    undisturbed: str,
    comes_back: str,
) -> None:
    jobs = [submitted(http) for _ in range(JOBS)]
    with JobReader(service.base_url, jobs[0]) as reader:
        reader.wait_for(20)
        with dead_broker(service):
            if comes_back == "empty":
                shutil.rmtree(service.data_dir / "broker" / "appendonlydir")
            late = submitted(http)
            refused = http.post("/v1/messages", json=body_of(4) | {"stream": True})
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["type"] == "overloaded_error"
            assert refused.headers["x-should-retry"] == "true"
        wait_for_broker(service)
        back_at = now_s()
        wait_for_queue(service, http, jobs)
        _log.info("queued again after %.3f s", now_s() - back_at)
        assert reader.whole() == undisturbed
    assert_done_once(http, [*jobs, late], undisturbed)


@contextmanager
def dead_broker(service: Service) -> Iterator[None]:
    """Kill redis-server while its keeper looks away; it comes back with the end of the block."""
    keeper = service.part("ops.broker")
    (server,) = keeper.children()
    keeper.suspend()
    try:
        # A keeper that has not stopped yet would reap the server, and start another.
        wait_for_status(keeper, psutil.STATUS_STOPPED)
        wait_until(lambda: thread_states(keeper) <= {"T"}, within_s=WAIT_S)
        server.kill()
        wait_for_status(server, psutil.STATUS_ZOMBIE)
        yield
    finally:
        keeper.resume()


def thread_states(process: psutil.Process) -> set[str]:
    """Return the states of its threads, which stop one after the other; empty without /proc."""
    stats = Path("/proc", str(process.pid), "task").glob("*/stat")
    return {stat.read_text().rpartition(") ")[2][0] for stat in stats}


def wait_for_status(process: psutil.Process, status: str) -> None:
    wait_until(process.status, lambda seen: seen == status, within_s=WAIT_S)


def wait_for_queue(service: Service, http: httpx.Client, jobs: list[str]) -> None:
    """Return once the broker knows again of jobs that wait, or all of them are done."""
    broker, queue = broker_of(service), Keys("semantic").messages(Priority.INTERACTIVE)

    def are_done() -> bool:
        return all(http.get(f"/v1/jobs/{one}").json()["status"] == "completed" for one in jobs)

    wait_until(lambda: broker.hlen(queue) or are_done(), within_s=WAIT_S, what="a queued job")


def wait_for_broker(service: Service) -> None:
    wait_until(
        lambda: broker_of(service).ping(),
        within_s=WAIT_S,
        what="the broker",
        ignore=(redis.RedisError, OSError, ValueError),
    )
