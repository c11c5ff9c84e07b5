"""One api and two workers, as on three machines: they share log and broker, nothing else."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.broker.client import Keys, connect
from ops.broker.control import RedisWorkerPulses
from tests.support.builders.log_files import verify
from tests.support.clients.job_reader import JobReader
from tests.support.clients.service_log import ended
from tests.support.polling import scaled, wait_until
from tests.support.processes.machines import Machine
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.postgres import new_database
from tests.support.processes.scripted_serve import SCRIPTED_WORKER
from tests.support.processes.scripted_service import (
    ENDLESS,
    ENDLESS_PACE_S,
    line,
    write_script,
)
from tests.support.processes.service import free_port

_log = logging.getLogger(__name__)

WITHIN_S = 90.0
#: Jobs are accepted in rounds until both workers have had one.
ROUNDS_MAX = 20
SILENCE_MAX_MS = 3_600_000
#: Seconds of a token of an endless stream: those of a batch are added up, and most tests have four.
PACE_S = ENDLESS_PACE_S / 4
#: Streams during a rolling restart, and the items of each before and after each step.
STREAMS = 8
ITEMS = 5
STORY: dict[str, Any] = {
    "model": "semantic-demo",
    "max_tokens": 400,
    "temperature": 1.0,
    "seed": 11,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
}


class Site:
    """The machines of one service."""

    def __init__(self, log_url: str, redis_url: str, directory: Path) -> None:
        self.log_url = log_url
        self._keys = Keys(f"t{uuid.uuid4().hex[:8]}")
        self._client = connect(redis_url)
        port = free_port()
        shared = {
            "SEMANTIC_LOG__URL": log_url,
            "SEMANTIC_REDIS__URL": redis_url,
            "SEMANTIC_REDIS__PREFIX": self._keys.prefix,
            "SEMANTIC_SERVER__PORT": str(port),
        }
        write_script(directory, [line("?", None), line("Count for ever", ENDLESS, pace_s=PACE_S)])
        # Only the end of its connections shows the others that a worker has died.
        silence = {"ops.broker.dramatiq_queue.HEARTBEAT_TIMEOUT_MS": SILENCE_MAX_MS}
        settings = {"SCRIPT_DIR": str(directory), "SEMANTIC_SERVER__DRAIN_S": "1"}
        script = with_constants(settings, silence)
        self._api = Machine("api", directory / "api", shared)
        self.workers = [
            Machine("worker", directory / name, shared | script, command=("-m", SCRIPTED_WORKER))
            for name in ("one", "two")
        ]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(WITHIN_S))

    def start(self) -> None:
        """Start all at once: each makes the tables if it is the first."""
        for machine in (self._api, *self.workers):
            machine.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        pids = {worker.pid for worker in self.workers}
        pulses = RedisWorkerPulses(self._client, self._keys)
        wait_until(
            lambda: {one.pid for one in pulses.alive() if one.state == "ready"} == pids,
            within_s=WITHIN_S,
        )
        wait_until(
            lambda: self.http.get("/health/ready").status_code,
            lambda status: status == 200,
            within_s=WITHIN_S,
            ignore=httpx.TransportError,
        )

    def log_tail(self) -> str:
        return "\n".join(machine.log_tail() for machine in (self._api, *self.workers))

    def close(self) -> None:
        codes = [machine.stop() for machine in (self._api, *self.workers)]
        self.http.close()
        self._client.close()
        assert codes == [0, 0, 0], self.log_tail()

    def accept(self, **changes: Any) -> str:
        accepted = self.http.post("/v1/jobs", json=STORY | changes)
        assert accepted.status_code == 202, accepted.text
        return str(accepted.json()["id"])

    def ended(self, job_id: str) -> dict[str, Any]:
        return ended(self.http, job_id, within_s=WITHIN_S, describe=self.log_tail)

    def events(self, stream: str) -> list[dict[str, Any]]:
        page = self.http.get("/v1/events", params={"stream": stream, "limit": 1000}).json()
        return list(page["data"])

    def attempts(self, job_id: str) -> list[str]:
        """Return who began to work on a job, in order."""
        events = self.events(job_id)
        return [one["data"]["worker"] for one in events if one["type"] == "AttemptStarted"]

    def is_begun(self, job_id: str) -> bool:
        return len(self.attempts(job_id)) == 1

    def empty_broker(self) -> None:
        """Delete all keys at once, as FLUSHALL does on a broker of their own."""
        script = "redis.call('DEL', unpack(redis.call('KEYS', ARGV[1])))"
        self._client.eval(script, 0, f"{self._keys.prefix}:*")

    def has_in_hand(self, job_id: str) -> bool:
        """Whether the broker knows which worker has a job."""
        sets = self._client.scan_iter(match=f"{self._keys.unacked_prefix}*")
        return any(self._client.sismember(one, job_id) for one in sets)

    def machine_of(self, worker: str) -> Machine:
        (began,) = (one for one in self.events(worker) if one["type"] == "WorkerStarted")
        (machine,) = (one for one in self.workers if one.pid == began["data"]["pid"])
        return machine


@pytest.fixture(
    scope="module", params=[pytest.param("sqlite", marks=pytest.mark.nightly), "postgres"]
)
def site(
    request: pytest.FixtureRequest, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    if request.param == "sqlite":
        yield from _running(Site(f"sqlite:///{directory / 'shared.sqlite3'}", redis_url, directory))
        return
    with new_database(request.getfixturevalue("postgres")) as url:
        yield from _running(Site(url, redis_url, directory))


def _running(site: Site) -> Iterator[Site]:
    try:
        site.start()
        yield site
    finally:
        site.close()


def test_jobs_spread_over_both_and_each_has_one_result(site: Site) -> None:
    workers: set[str] = set()
    jobs: list[str] = []
    for _ in range(ROUNDS_MAX):
        fresh = [site.accept(max_tokens=40, seed=seed) for seed in range(8)]
        for job_id in fresh:
            assert site.ended(job_id)["status"] == "completed"
            workers.update(site.attempts(job_id))
        jobs += fresh
        if len(workers) == 2:
            break
    assert len(workers) == 2
    texts: dict[int, set[str]] = {}
    for number, job_id in enumerate(jobs):
        kinds = [event["type"] for event in site.events(job_id)]
        assert kinds == ["JobSubmitted", "AttemptStarted", "JobCompleted"]
        texts.setdefault(number % 8, set()).add(site.ended(job_id)["output"]["text"])
    assert all(len(answers) == 1 for answers in texts.values()), "the worker changes the text"


def test_cancelling_reaches_the_worker_that_runs_the_job(site: Site) -> None:
    endless = [{"role": "user", "content": "Count for ever."}]
    jobs = [site.accept(max_tokens=20_000, messages=endless, seed=seed) for seed in range(4)]
    for job_id in jobs:
        wait_until(partial(site.is_begun, job_id), within_s=WITHIN_S)
        assert site.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
        ended = site.ended(job_id)
        assert ended["status"] == "cancelled"
        assert len(site.attempts(job_id)) == 1


def test_emptied_broker_takes_no_job_from_a_worker_that_lives(site: Site) -> None:
    endless = [{"role": "user", "content": "Count for ever."}]
    jobs = [site.accept(max_tokens=20_000, messages=endless, seed=seed) for seed in range(4)]
    for job_id in jobs:
        wait_until(partial(site.is_begun, job_id), within_s=WITHIN_S)
    # Twice: two workers that die on a job fail it.
    for _ in range(2):
        site.empty_broker()
        for job_id in jobs:
            wait_until(partial(site.has_in_hand, job_id), within_s=WITHIN_S)
        assert site.ended(site.accept(max_tokens=4))["status"] == "completed"
    for job_id in jobs:
        site.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
        assert site.ended(job_id)["status"] == "cancelled"
        assert len(site.attempts(job_id)) == 1


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_rolling_restart_of_the_workers_cuts_no_stream_and_loses_nothing(site: Site) -> None:
    endless = [{"role": "user", "content": "Count for ever."}]
    jobs = [site.accept(max_tokens=20_000, messages=endless, seed=seed) for seed in range(STREAMS)]
    url, short = str(site.http.base_url), list[str]()
    with ExitStack() as stack:
        readers = [stack.enter_context(JobReader(url, job_id)) for job_id in jobs]
        for reader in readers:
            reader.wait_for(ITEMS)
        for worker in site.workers:
            assert worker.stop() == 0, site.log_tail()
            short += [site.accept(max_tokens=4) for _ in range(STREAMS)]
            for reader in readers:
                reader.wait_for(len(reader.numbered) + ITEMS)
            worker.start()
            site.wait_ready()
        for job_id in jobs:
            site.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
            assert site.ended(job_id)["status"] == "cancelled"
    for reader, job_id in zip(readers, jobs, strict=True):
        assert reader.connections == 1
        assert [one.data["n"] for one in reader.numbered] == list(range(len(reader.numbered)))
        received = "".join(one.data["text"] for one in reader.events if one.kind == "text")
        assert ENDLESS.startswith(received)
        kinds = [event["type"] for event in site.events(job_id)]
        # Each attempt but the last one was ended by its own worker.
        assert kinds.count("AttemptStarted") == kinds.count("AttemptFailed") + 1 <= 3
        assert kinds.count("JobCancelled") == 1
    for job_id in short:
        assert site.ended(job_id)["status"] == "completed"
        assert [event["type"] for event in site.events(job_id)].count("JobCompleted") == 1


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_machine_that_dies_in_mid_stream_is_a_pause_and_the_other_one_says_the_rest(
    site: Site,
) -> None:
    expected = site.ended(site.accept())["output"]["text"]
    job_id = site.accept()
    items: list[dict[str, Any]] = []
    killed: list[tuple[str, Machine, datetime]] = []
    with site.http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                items.append(json.loads(line.removeprefix("data: ")))
                if len(items) == 20:
                    (worker,) = site.attempts(job_id)
                    killed.append((worker, site.machine_of(worker), datetime.now(UTC)))
                    killed[0][1].kill()
    assert [item["n"] for item in items] == list(range(len(items)))
    assert "".join(item.get("text", "") for item in items) == expected
    assert site.ended(job_id)["status"] == "completed"
    ((first, dead, killed_at),) = killed
    attempts = site.attempts(job_id)
    assert len(attempts) == 2
    (second,) = set(attempts) - {first}
    (began,) = (one for one in site.events(job_id) if one["data"].get("worker") == second)
    gap = datetime.fromisoformat(began["recorded_at"]) - killed_at
    _log.info("the other worker began after %.1f s", gap.total_seconds())
    # The machine comes back, says who died, and says nothing of the one that lives.
    dead.start()
    site.wait_ready()
    assert [event["type"] for event in site.events(first)][-1] == "WorkerLost"
    assert "WorkerLost" not in [event["type"] for event in site.events(second)]
    verify(site.log_url)
