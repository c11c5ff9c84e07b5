"""An idle model leaves the memory, and the next request waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.clients.job_reader import WAIT_S
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

PROMPT = "Tell me a long story. " * 60


@pytest.fixture
def idling(tmp_path: Path) -> Iterator[Service]:
    model = make_tiny_llama(tmp_path / "tiny", hidden=64, layers=2, context=4096)
    service = Service(
        tmp_path / "data",
        env={"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_MODEL__IDLE_TTL_S": "2"},
        cold=True,  # a prepared process has MLX from its beginning
    ).start()
    yield service
    assert service.stop() == 0, service.log()


def test_request_after_the_unload_waits_for_the_model_and_its_context_is_warm(
    idling: Service,
) -> None:
    with httpx.Client(base_url=idling.base_url, timeout=scaled(WAIT_S)) as http:
        first = _ask(http)
        loaded = idling.part("worker")
        wait_until(lambda: _checks(http)["model"] == "unloaded", within_s=WAIT_S)
        assert not loaded.is_running()
        waiting = idling.part("worker")
        assert "libmlx" not in _mapped_files(waiting)
        assert http.get("/v1/models").json()["data"][0]["id"] == "tiny"
        second = _ask(http)
        assert idling.part("worker") == waiting
        assert second["content"] == first["content"]
        assert second["usage"]["cache_read_input_tokens"] > 0
        assert http.get("/health/ready").json()["status"] == "ok"
        counted = http.post("/v1/messages/count_tokens", json=_body())
        assert counted.status_code == 200
        wait_until(lambda: _checks(http)["model"] == "unloaded", within_s=WAIT_S)
        counted = http.post("/v1/messages/count_tokens", json=_body())
        assert counted.status_code == 200, counted.text
        events = http.get("/v1/events", params={"stream": "model-tiny"}).json()["data"]
    types = [event["type"] for event in events]
    assert types[:4] == ["ModelLoaded", "ModelUnloaded", "ModelLoaded", "ModelUnloaded"]


def _body() -> dict[str, Any]:
    return {
        "model": "claude-any",
        "messages": [{"role": "user", "content": PROMPT}],
    }


def _ask(http: httpx.Client) -> dict[str, Any]:
    body = _body() | {"max_tokens": 8, "temperature": 0}
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def _checks(http: httpx.Client) -> dict[str, str]:
    reply = http.get("/health/ready")
    # A worker that ends has no model for a moment.
    checks: dict[str, str] = reply.json()["checks"]
    assert reply.status_code in {200, 503}
    return checks


def _mapped_files(process: psutil.Process) -> str:
    return " ".join(one.path for one in process.memory_maps())
