"""The GPU fails under a stream: the worker restarts, and the stream goes on without a strike."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import httpx

from ops.exit_codes import ExitCode
from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.processes.service import Service

TOKENS = 800
#: Loaded by each process of the service at its start. In the worker, a step fails like a device
#: while the file exists; the failure removes it.
PLANTED = """
    import importlib.abc, importlib.util, os, pathlib, sys

    MODULE = "worker.engine.mlx.runner"
    FILE = pathlib.Path(os.environ["FAILING_DEVICE"])

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path, target=None):
            if name != MODULE:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            self.loader, spec.loader = spec.loader, self
            return spec

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            self.loader.exec_module(module)
            step = module.BatchRunner.step

            def failing(runner):
                if FILE.exists():
                    FILE.unlink()
                    raise RuntimeError("[METAL] Command buffer execution failed: planted.")
                return step(runner)

            module.BatchRunner.step = failing

    sys.meta_path.insert(0, Finder())
"""


def test_failed_device_is_a_pause_of_the_same_stream(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny", hidden=64, layers=2, context=2048)
    planted, switch = tmp_path / "planted", tmp_path / "fail-now"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(textwrap.dedent(PLANTED))
    service = Service(
        tmp_path / "data",
        env={
            "SEMANTIC_MODEL__ID": str(model),
            "PYTHONPATH": str(planted),
            "FAILING_DEVICE": str(switch),
        },
    ).start()
    try:
        with httpx.Client(base_url=service.base_url, timeout=WAIT_S) as http:
            whole = _read(service, http, TOKENS)
            worker = service.part("worker")
            broken = _read(service, http, TOKENS, fail_after=20, switch=switch)
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
    switch: Path | None = None,
) -> dict[str, Any]:
    body = {
        "model": "any",
        "max_tokens": tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
    }
    reply = http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    job_id = str(reply.json()["id"])
    with JobReader(service.base_url, job_id) as reader:
        if fail_after is not None:
            assert switch is not None
            reader.wait_for(fail_after)
            switch.touch()
        text = reader.whole()
        return {"job": job_id, "text": text, "attempts": reader.attempts}
