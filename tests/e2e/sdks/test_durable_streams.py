"""The unmodified client of Durable Streams, and the half of its conformance tests that reads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients import npm
from tests.support.clients.stream_writer import stream_writer
from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.scripted_service import line
from tests.support.processes.service import Service

CLIENT_VERSION = "0.2.7"
CONFORMANCE_VERSION = "0.3.6"
CLIENTS = Path(__file__).parents[2] / "support" / "clients"
#: A long poll of the service under conformance tests, in seconds; some of them wait 5 s at most.
POLL_S = 1.0
#: The worker may be suspended for so long.
SUSPENDED_MAX_S = 3600.0
TEXT = " ".join(map(str, range(120)))
PACE_S = 0.02

#: The sections that read; docs/jobs.md has the reasons for the others.
SECTIONS = (
    "Read Operations",
    "Long-Poll Operations",
    "Browser Security Headers",
    "HEAD Metadata should",
    "Offset Validation and Resumability",
    "Long-Poll Edge Cases",
    "Caching and ETag",
    "Chunking and Large Payloads",
    "Read-Your-Writes Consistency",
    "SSE Mode",
    "JSON Mode",
    "Property-Based Tests (fast-check) Immutability Properties",
    "Property-Based Tests (fast-check) Offset Validation Properties",
    "Stream Closure HEAD with Stream Closure",
    "Stream Closure Read Closed Streams (Catch-up)",
    "Stream Closure Long-poll with Stream Closure",
    "Stream Closure SSE with Stream Closure",
)
#: Tests of these sections that need other streams than those of a job.
LEFT_OUT = re.compile(r"base64|[Bb]inary|reject POST|reject invalid JSON|reject empty JSON")


def node() -> str:
    found = shutil.which("node")
    if found is None:
        npm.missing("node is not installed")
    return found


@pytest.fixture(scope="module")
def client() -> Path:
    return npm.install(
        "@durable-streams/client",
        CLIENT_VERSION,
        npm.ROOT / ".venv" / "durable-streams-client" / CLIENT_VERSION,
        "@durable-streams/client/dist/index.js",
    )


@pytest.fixture(scope="module")
def conformance() -> Path:
    return npm.install(
        "@durable-streams/server-conformance-tests",
        CONFORMANCE_VERSION,
        npm.ROOT / ".venv" / "durable-streams-tests" / CONFORMANCE_VERSION,
        "vitest/vitest.mjs",
    )


@pytest.mark.nightly
def test_the_tests_that_read_pass(
    conformance: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pages = {"SEMANTIC_SERVER__CORS_ORIGINS": '["https://example.com"]'}
    constants = {
        "api.dialects.jobs.durable.LONG_POLL_S": POLL_S,
        "ops.supervisor.parts.WORKER_SILENCE_S": SUSPENDED_MAX_S,
    }
    env = with_constants(pages, constants)
    service = Service(tmp_path_factory.mktemp("conformance") / "data", env=env).start()
    with stream_writer(service) as url:
        tests = _run_conformance(conformance, url)
    assert service.stop() == 0, service.log()
    counted = [one for one in tests if not LEFT_OUT.search(one["fullName"])]
    failed = {
        one["fullName"]: one["failureMessages"][0][:300]
        for one in counted
        if one["status"] != "passed"
    }
    assert not failed, json.dumps(failed, indent=1)
    assert {section for one in counted for section in SECTIONS if section in one["fullName"]} == {
        *SECTIONS
    }


def _run_conformance(vitest: Path, url: str) -> list[dict[str, Any]]:
    """Run the sections against a server; return the tests that were not skipped."""
    prefix = vitest.parents[2]
    shutil.copy(CLIENTS / "durable_conformance.test.mjs", prefix)
    report = prefix / "report.json"
    report.unlink(missing_ok=True)
    wanted = "|".join(re.escape(section) for section in SECTIONS)
    done = subprocess.run(
        [node(), str(vitest), "run", "--reporter=json", f"--outputFile={report}",
         f"--testTimeout={scaled(60) * 1000:.0f}", "-t", f"^({wanted})"],
        cwd=prefix,
        env=os.environ | {"CONFORMANCE_TEST_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(600),
    )  # fmt: skip
    assert report.exists(), done.stderr[-2000:]
    found = json.loads(report.read_text())["testResults"]
    return [
        one
        for file in found
        for one in file["assertionResults"]
        if one["status"] not in {"skipped", "pending"}
    ]


@pytest.fixture
def paced(scripted: Callable[[Sequence[dict[str, Any]]], Service]) -> Service:
    return scripted([line("", TEXT, pace_s=PACE_S)])


@pytest.fixture
def stream(paced: Service, request: pytest.FixtureRequest) -> str:
    """Return the URL of the stream of a job that has begun."""
    body = {"prompt": f"count for {request.node.name}", "max_tokens": 1000}
    job = httpx.post(f"{paced.base_url}/v1/jobs", json=body, timeout=scaled(WITHIN_S)).json()
    return f"{paced.base_url}/v1/jobs/{job['id']}/stream"


def test_the_client_reads_a_job_over_the_death_of_worker_and_api(
    paced: Service, client: Path, stream: str
) -> None:
    with _session(client, stream, "long-poll") as batches:
        batches.wait_for(20)
        paced.kill_part("worker")
        batches.wait_for(len(batches.text) + 20)
        paced.kill_part("api")
        batches.wait_for_end()
    assert batches.text == TEXT
    assert batches.kinds.count("finished") == 1
    # Where the first process had ended a batch, the second one continues.
    middle = batches.batches[len(batches.batches) // 2]["offset"]
    reply = httpx.get(stream, params={"offset": middle}, timeout=scaled(WITHIN_S))
    rest = "".join(one["text"] for one in reply.json() if one["kind"] == "text")
    assert rest
    assert TEXT.endswith(rest)
    assert reply.headers["stream-closed"] == "true"


def test_a_reader_of_events_continues_after_its_last_offset(
    paced: Service, client: Path, stream: str, pytestconfig: pytest.Config
) -> None:
    with _session(client, stream, "sse") as first:
        first.wait_for(20)
        if pytestconfig.getoption("--nightly"):
            paced.kill_part("worker")
            first.wait_for(len(first.text) + 20)
        paced.kill_part("api")
        # The client itself connects again only after an orderly end of its events.
        first.wait_for_end()
    paced.wait_ready()
    with _session(client, stream, "sse", first.batches[-1]["offset"]) as second:
        second.wait_for_end()
    assert first.text + second.text == TEXT
    assert [*first.kinds, *second.kinds].count("finished") == 1
    assert second.batches[-1]["streamClosed"] is True


class _Batches:
    """What the client has printed so far."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._is_over = False

    @property
    def _items(self) -> list[dict[str, Any]]:
        return [item for batch in self.batches for item in batch["items"]]

    @property
    def text(self) -> str:
        return "".join(one["text"] for one in self._items if one["kind"] == "text")

    @property
    def kinds(self) -> list[str]:
        return [one["kind"] for one in self._items]

    def read(self, lines: Iterator[str]) -> None:
        for text in lines:
            with self._changed:
                self.batches.append(json.loads(text))
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for(self, characters: int) -> None:
        self._wait(lambda: len(self.text) >= characters)

    def wait_for_end(self) -> None:
        """Wait until the client has ended."""
        self._wait(lambda: self._is_over)

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            came = self._changed.wait_for(until, scaled(60))
        assert came, self.batches[-2:]


@contextmanager
def _session(client: Path, url: str, live: str, offset: str = "-1") -> Iterator[_Batches]:
    command = [node(), str(CLIENTS / "durable_session.mjs"), str(client), url, live, offset]
    batches = _Batches()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=batches.read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield batches
        finally:
            process.kill()
            reader.join(scaled(WITHIN_S))
