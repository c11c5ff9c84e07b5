"""A service on trained weights answers as mlx-lm does, whatever happens to its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx_lm
import pytest

from ops.settings.models import DEMO_MODEL
from tests.support.clients.job_reader import JobReader
from tests.support.clients.service_log import ServiceLog
from tests.support.models.real_engine import prompt_texts, reference, rendered
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service
from worker.engine.mlx.model.loader import LoadedWeights

PROMPTS = 3
TOKENS = 32
WAIT_S = 300.0

pytestmark = pytest.mark.timeout(scaled(1800))


@pytest.fixture(scope="module")
def expected(smollm2: LoadedWeights, real_model: Callable[[str], Path]) -> list[str]:
    tokenizer = mlx_lm.utils.load_tokenizer(real_model("smollm2-float32"))
    prompts = rendered(smollm2, prompt_texts(PROMPTS))
    return [tokenizer.decode(reference(smollm2, one, TOKENS).tokens) for one in prompts]


@pytest.fixture(scope="module")
def service(
    real_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    directory = real_model("smollm2-float32")
    served = Service(
        tmp_path_factory.mktemp("real") / "data",
        env={"SEMANTIC_MODEL__ID": str(directory), "SEMANTIC_MODEL__NAME": "smollm2"},
    ).start()
    yield served
    assert served.stop() == 0, served.log()


def test_answers_survive_a_killed_worker_and_a_swap_and_back(
    service: Service, expected: list[str]
) -> None:
    with ServiceLog(service) as log, ExitStack() as stack:
        jobs = [_submit(log, text) for text in prompt_texts(PROMPTS)]
        readers = [stack.enter_context(JobReader(service.base_url, job)) for job in jobs]
        for reader in readers:
            reader.wait_for(4)
        service.kill_part("worker.main")
        assert [reader.whole() for reader in readers] == expected
        assert any(len(reader.attempts) > 1 for reader in readers), "no answer was interrupted"
        service.wait_ready()
        _swap(log, DEMO_MODEL)
        _swap(log, "smollm2")
        again = [_submit(log, text) for text in prompt_texts(PROMPTS)]
        ends = [log.http.get(f"/v1/jobs/{job}/stream") for job in again]
        assert all(reply.status_code == 200 for reply in ends)
        found = [stack.enter_context(JobReader(service.base_url, job)) for job in again]
        assert [reader.whole() for reader in found] == expected


def _submit(log: ServiceLog, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0}
    reply = log.http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def _swap(log: ServiceLog, model: str) -> None:
    reply = log.http.post(f"/admin/models/{model}/load", params={"drain_s": 60})
    assert reply.status_code == 202, reply.text
    swap_id = reply.json()["id"]

    def swap() -> dict[str, Any]:
        found: dict[str, Any] = log.http.get(f"/admin/swaps/{swap_id}").raise_for_status().json()
        return found

    ended = wait_until(swap, lambda one: one["ended_at"] is not None, within_s=WAIT_S, what="swap")
    assert ended["state"] == "done", ended
