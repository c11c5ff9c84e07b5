"""Limits of keys at a running api: one key at its limit does not hinder the others.

There is no worker, so accepted jobs stay open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.polling import scaled, wait_until
from tests.support.processes.service import READY_WITHIN_S, free_port

KEYS = {name: f"{name}-" + name[0] * 24 for name in ("ann", "bob", "cid")}
JOBS_AT_ONCE = 3
WITHIN_S = 60.0
JOB = {"prompt": "Say hello.", "max_tokens": 4}


@pytest.fixture(scope="module")
def api(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an api process on a log of its own."""
    directory, port = tmp_path_factory.mktemp("quotas"), free_port()
    base_url = f"http://127.0.0.1:{port}"
    process = _start(directory, port, valkey_url)
    try:

        def answers() -> bool:
            assert process.poll() is None, (directory / "log").read_text()
            return httpx.get(f"{base_url}/health/live", timeout=scaled(WITHIN_S)).is_success

        wait_until(answers, within_s=READY_WITHIN_S, ignore=httpx.TransportError)
        yield base_url
    finally:
        process.terminate()
        assert process.wait(scaled(WITHIN_S)) == 0, (directory / "log").read_text()


def _start(directory: Path, port: int, broker: str) -> subprocess.Popen[bytes]:
    # No file of it is read before a worker loads it.
    config = directory / "semantic.toml"
    config.write_text('[models.notes]\nsource = "/nowhere"\nkind = "embedding"\n')
    env = {name: value for name, value in os.environ.items() if not name.startswith("SEMANTIC_")}
    env |= {
        "SEMANTIC_CONFIG": str(config),
        "SEMANTIC_DATA_DIR": str(directory / "data"),
        "SEMANTIC_REDIS__URL": broker,
        "SEMANTIC_REDIS__PREFIX": directory.name,
        "SEMANTIC_SERVER__PORT": str(port),
        "SEMANTIC_SERVER__API_KEYS": json.dumps([f"{name}={key}" for name, key in KEYS.items()]),
        "SEMANTIC_SERVER__KEY_JOBS_AT_ONCE": str(JOBS_AT_ONCE),
    }
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "api.main"], env=env, stdout=log, stderr=subprocess.STDOUT
        )


@pytest.fixture
def keys(api: str) -> Iterator[dict[str, httpx.Client]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                httpx.Client(base_url=api, headers={"x-api-key": key}, timeout=scaled(WITHIN_S))
            )
            for name, key in KEYS.items()
        }


def test_open_jobs_of_one_key_do_not_hinder_the_other_and_a_cancelled_one_frees_its_place(
    keys: dict[str, httpx.Client],
) -> None:
    ann, bob = keys["ann"], keys["bob"]
    opened = [ann.post("/v1/jobs", json=JOB) for _ in range(JOBS_AT_ONCE)]
    assert [reply.status_code for reply in opened] == [202] * JOBS_AT_ONCE
    turn = {"role": "user", "content": "Say hello."}
    chat = {"model": "claude-x", "max_tokens": 4, "messages": [turn]}
    for path, body in {"/v1/jobs": JOB, "/v1/messages": chat}.items():
        refused = ann.post(path, json=body)
        assert refused.status_code == 429, refused.text
        assert "rate_limit" in refused.text
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["x-should-retry"] == "true"
    assert bob.post("/v1/jobs", json=JOB).status_code == 202
    job = opened[0].json()["id"]
    assert ann.post(f"/v1/jobs/{job}/cancel").status_code < 300
    assert ann.post("/v1/jobs", json=JOB).status_code == 202
    assert ann.post("/v1/jobs", json=JOB).status_code == 429


def test_requests_for_vectors_count_as_jobs(
    keys: dict[str, httpx.Client],
) -> None:
    cid = keys["cid"]

    def embed(text: str) -> httpx.Response:
        return cid.post("/v1/embeddings", json={"model": "notes", "input": text})

    def open_jobs() -> int:
        return len(cid.get("/v1/jobs?status=queued").json()["data"])

    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        waiting = [pool.submit(embed, text) for text in ("a", "b", "c")]
        wait_until(lambda: open_jobs() == JOBS_AT_ONCE)
        refused = embed("d")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) > 0
        for job in cid.get("/v1/jobs?status=queued").json()["data"]:
            assert cid.post(f"/v1/jobs/{job['id']}/cancel").status_code == 200
        assert {one.result().status_code for one in waiting} == {409}


def test_no_key_takes_the_name_of_a_session_of_another(keys: dict[str, httpx.Client]) -> None:
    bob, cid = keys["bob"], keys["cid"]
    for name in ("nightly", "nightly@cid"):
        assert bob.post("/v1/agents", json={"id": name}).status_code == 201
    chat = {"model": "claude-x", "messages": [{"role": "user", "content": "Say hello."}]}
    headers = {"session-id": "nightly"}

    def jobs(http: httpx.Client, **wanted: str) -> list[str]:
        found = http.get("/v1/jobs", params={"status": "queued", **wanted}).json()["data"]
        return [job["id"] for job in found]

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cid.post, "/v1/chat/completions", json=chat, headers=headers)
        wait_until(lambda: waiting.done() or len(jobs(cid)) == 1)
        assert not waiting.done(), waiting.result().text
        session = {"agent_id": "nightly~cid"}
        assert (len(jobs(cid, **session)), jobs(bob, **session)) == (1, [])
        assert cid.get("/v1/agents/nightly~cid").status_code == 404, "it has no history of its own"
        assert cid.post(f"/v1/jobs/{jobs(cid)[0]}/cancel").status_code == 200
    for name in ("nightly~cid", "nightly~bob"):
        assert bob.post("/v1/agents", json={"id": name}).status_code == 400
        assert bob.post("/v1/jobs", json=JOB | {"agent_id": name}).status_code == 400
