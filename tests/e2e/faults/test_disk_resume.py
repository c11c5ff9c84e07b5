"""A worker that is killed in the middle of its answers: the next goes on out of blocks on disk."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.model.registry import ModelEntry
from domain.values import Sampling
from ops.clock import SystemClock
from tests.support.clients.service_log import ended
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner

FOX = " and the quick brown fox jumps over the lazy dog" * 30
#: Many, so that the answers go on while the blocks of their prompts reach the disk.
TOKENS = 1500
EVENTS_BEFORE_DEATH = 4
WAIT_S = 60.0
SAMPLINGS = {"greedy": Sampling(temperature=0), "seeded": Sampling(temperature=1.0, seed=42)}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that takes a few milliseconds a token."""
    return make_tiny_llama(
        tmp_path_factory.mktemp("models") / "tiny", hidden=128, layers=4, context=4096
    )


def uninterrupted(model_dir: Path, kv_bits: int) -> dict[str, str]:
    """Return what a cold engine says that never heard of blocks."""
    source = ModelEntry(name="tiny", source=str(model_dir), kv_bits=kv_bits)
    engine = BatchEngine(
        runner_factory=lambda: BatchRunner(
            load_weights=lambda: load_weights(source), prefill_step_tokens=256
        ),
        sink=CollectingSink(),
        clock=SystemClock(),
        max_batch_size=4,
    )
    engine.start()
    try:
        handles = {
            name: submit(
                engine, f"job-{name}", ask(name + FOX, max_tokens=TOKENS, sampling=sampling)
            )
            for name, sampling in SAMPLINGS.items()
        }
        return {name: finished(handle).text for name, handle in handles.items()}
    finally:
        engine.close(0)


def submitted(http: httpx.Client, name: str, sampling: Sampling) -> str:
    body = {
        "model": "claude-any",
        "max_tokens": TOKENS,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "agent_id": name,
        "messages": [{"role": "user", "content": name + FOX}],
    }
    reply = http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def wait_for_events(http: httpx.Client, job_id: str, count: int) -> None:
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        seen = 0
        for line in response.iter_lines():
            seen += line.startswith("event: text")
            if seen == count:
                return
    raise AssertionError(f"{job_id} ended before the worker was killed")


def wait_for_blocks(data_dir: Path, contexts: int) -> None:
    """Return once the first block of each context is on disk; it appears there whole."""
    wait_until(
        lambda: len(list(data_dir.rglob("*-root-256.kv"))) >= contexts, what="blocks on disk"
    )


def events(http: httpx.Client, stream: str, kind: str) -> list[dict[str, Any]]:
    found = http.get("/v1/events", params={"stream": stream, "type": kind}).json()
    return [event["data"] for event in found["data"]]


@pytest.mark.parametrize("kv_bits", [0, pytest.param(8, marks=pytest.mark.nightly)])
def test_killed_worker_goes_on_out_of_blocks_on_disk(
    own_service: Callable[..., Service], model_dir: Path, kv_bits: int
) -> None:
    service = own_service(SEMANTIC_MODEL__ID=str(model_dir), SEMANTIC_CACHE__KV_BITS=str(kv_bits))
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http:
        jobs = {name: submitted(http, name, sampling) for name, sampling in SAMPLINGS.items()}
        waiting = [
            threading.Thread(target=wait_for_events, args=(http, job_id, EVENTS_BEFORE_DEATH))
            for job_id in jobs.values()
        ]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        worker = service.part("worker")
        wait_for_blocks(service.data_dir, len(jobs))
        worker.send_signal(signal.SIGKILL)
        outcomes = {name: ended(http, job_id) for name, job_id in jobs.items()}
        expected = uninterrupted(model_dir, kv_bits)
        for name, job in outcomes.items():
            assert job["status"] == "completed", job
            assert job["attempt"] == 2
            assert job["output"]["text"] == expected[name]
            first, second = events(http, jobs[name], "AttemptStarted")
            assert (first["cache_source"], first["resumed_tokens"]) == ("none", 0)
            assert second["cache_source"] == "disk"
            assert second["cached_tokens"] >= 256
            assert second["resumed_tokens"] > 0
            restored = events(http, f"agent-{name}", "AgentCacheRestored")
            assert restored[0]["source"] == "disk"
            assert restored[0]["tokens"] >= second["cached_tokens"]
            assert job["usage"]["cached_tokens"] >= second["cached_tokens"]
    assert service.stop() == 0
