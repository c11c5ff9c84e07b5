"""The GPU fails under a stream: the worker restarts, and the stream goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from ops.exit_codes import ExitCode
from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled
from tests.support.processes.planted_fault import PlantedFault
from tests.support.processes.service import Service

TOKENS = 200
#: Steps before the one that fails: enough for some items, too few for an end.
STEPS = 60


def test_failed_device_is_a_pause_of_the_same_stream(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny", hidden=64, layers=2, context=2048)
    fault = PlantedFault(tmp_path)
    service = Service(
        tmp_path / "data", env={"SEMANTIC_MODEL__ID": str(model)} | fault.environment
    ).start()
    try:
        with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http:
            whole = _read(service, http, TOKENS)
            worker = service.part("worker")
            broken = _read(service, http, TOKENS, fail_after=20, fault=fault)
            assert broken["text"] == whole["text"]
            assert broken["attempts"] == {1, 2}
            job = http.get("/v1/events", params={"stream": broken["job"]}).json()["data"]
        assert not worker.is_running()
        assert [event["type"] for event in job] == [
            "JobSubmitted",
            "AttemptStarted",
            "AttemptFailed",
            "AttemptStarted",
            "JobCompleted",
        ]
        assert job[2]["data"]["error"] == "device_failed"
        ends = [line for line in service.log().splitlines() if "ended, starting it again" in line]
        (end,) = [json.loads(line) for line in ends]
        assert (end["returncode"], end["pause_s"]) == (int(ExitCode.DEVICE_FAILED), 0.0)
    finally:
        assert service.stop() == 0, service.log()


def _read(
    service: Service,
    http: httpx.Client,
    tokens: int,
    *,
    fail_after: int | None = None,
    fault: PlantedFault | None = None,
) -> dict[str, Any]:
    body = {
        "model": "claude-any",
        "max_tokens": tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
    }
    reply = http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    job_id = str(reply.json()["id"])
    with JobReader(service.base_url, job_id) as reader:
        if fail_after is not None:
            assert fault is not None
            with fault.gate(rows=1, steps=STEPS):
                reader.wait_for(fail_after)
                fault.trigger("device")
        text = reader.whole()
        return {"job": job_id, "text": text, "attempts": reader.attempts}
