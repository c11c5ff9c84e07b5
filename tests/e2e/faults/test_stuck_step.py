"""A step does not return or its device fails: the worker is replaced, and the jobs go on.

The log names the step that did not return.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from ops.exit_codes import ExitCode
from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled, wait_until
from tests.support.processes.planted_fault import PlantedFault
from tests.support.processes.service import Service

TOKENS = 1200
DEVICE_TOKENS = 200
PLACES = 2
#: Steps before the one that hangs: enough for some items of each job, too few for an end.
STEPS = 60
ITEMS = 20


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> PlantedFault:
    return PlantedFault(tmp_path_factory.mktemp("fault"))


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory, fault: PlantedFault) -> Iterator[Service]:
    model = make_tiny_llama(
        tmp_path_factory.mktemp("models") / "tiny", hidden=64, layers=2, context=2048
    )
    service = Service(
        tmp_path_factory.mktemp("hanging") / "data",
        env={
            "SEMANTIC_MODEL__ID": str(model),
            "SEMANTIC_ENGINE__MAX_BATCH_SIZE": str(PLACES),
            "SEMANTIC_ENGINE__STEP_LIMIT_S": "2",
        }
        | fault.environment,
    ).start()
    yield service
    assert service.stop() == 0, service.log()


@pytest.mark.parametrize(
    ("kind", "returncode"),
    [pytest.param("hang", int(ExitCode.STUCK), marks=pytest.mark.nightly), ("hold", -9)],
)
def test_step_that_does_not_return_is_a_pause_of_its_streams(
    hanging: Service, fault: PlantedFault, kind: str, returncode: int
) -> None:
    worker = hanging.part("worker")
    with (
        httpx.Client(base_url=hanging.base_url, timeout=scaled(WAIT_S)) as http,
        ExitStack() as stack,
    ):
        with fault.gate(rows=PLACES, steps=STEPS):
            # One of them waits in the engine while the step hangs; any may be the one.
            jobs = [_submit(http, n) for n in range(PLACES + 1)]
            readers = [stack.enter_context(JobReader(hanging.base_url, job)) for job in jobs]
            running = wait_until(
                lambda: {n for n, reader in enumerate(readers) if len(reader.numbered) >= ITEMS},
                lambda found: len(found) == PLACES,
                within_s=WAIT_S,
            )
            (waiting,) = set(range(len(jobs))) - running
            wait_until(
                lambda: [one["type"] for one in _events(http, jobs[waiting])],
                lambda types: "AttemptStarted" in types,
                within_s=WAIT_S,
            )
            fault.trigger(kind)
        for reader in readers:
            reader.whole()
        histories = [_events(http, job) for job in jobs]
        lost = [one["data"] for one in _events(http, type="WorkerLost")]
    assert not worker.is_running()
    assert [history[-1]["type"] for history in histories] == ["JobCompleted"] * len(jobs)
    step = lost[-1]["step"]
    assert (step["rows"], step["is_stuck"]) == (PLACES, kind == "hang")
    assert step["kind"] in {"decode", "prefill"}
    assert step["tokens"] >= PLACES
    assert step["seconds"] > 0
    failures = [
        [event["data"]["error"] for event in history if event["type"] == "AttemptFailed"]
        for history in histories
    ]
    lost_attempt = ["engine_lost"] if kind == "hang" else []
    assert all(failures[number] == lost_attempt for number in running), failures
    # The worker may end before it records the end of the one that only waited.
    assert failures[waiting] in ([[], ["draining"]] if kind == "hang" else [[]])
    assert f'"returncode": {returncode}' in hanging.log()


def test_failed_device_is_a_pause_of_the_same_stream(hanging: Service, fault: PlantedFault) -> None:
    worker, ends_before = hanging.part("worker"), len(_ends(hanging))
    with httpx.Client(base_url=hanging.base_url, timeout=scaled(WAIT_S)) as http:
        with JobReader(hanging.base_url, _submit(http, 0, tokens=DEVICE_TOKENS)) as reader:
            whole = reader.whole()
        job_id = _submit(http, 0, tokens=DEVICE_TOKENS)
        with JobReader(hanging.base_url, job_id) as reader:
            with fault.gate(rows=1, steps=STEPS):
                reader.wait_for(ITEMS)
                fault.trigger("device")
            assert reader.whole() == whole
            assert reader.attempts == {1, 2}
        job = _events(http, job_id)
    assert not worker.is_running()
    assert [event["type"] for event in job] == [
        "JobSubmitted",
        "AttemptStarted",
        "AttemptFailed",
        "AttemptStarted",
        "JobCompleted",
    ]
    assert job[2]["data"]["error"] == "device_failed"
    (end,) = _ends(hanging)[ends_before:]
    assert (end["returncode"], end["pause_s"]) == (int(ExitCode.DEVICE_FAILED), 0.0)


def _ends(service: Service) -> list[dict[str, Any]]:
    lines = service.log_file.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if "ended, starting it again" in line]


def _submit(http: httpx.Client, number: int, *, tokens: int = TOKENS) -> str:
    body = {
        "model": "claude-any",
        "max_tokens": tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": f"Tell me story {number}."}],
    }
    reply = http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def _events(http: httpx.Client, stream: str | None = None, **more: str) -> list[dict[str, Any]]:
    params = more | ({"stream": stream} if stream else {})
    found: list[dict[str, Any]] = http.get("/v1/events", params=params).json()["data"]
    return found
