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
from tests.support.clients.service_log import ServiceLog, ended
from tests.support.models.real_answers import LONG_TEXT, MODEL, TOKENS, KeptAnswers
from tests.support.models.real_engine import prompt_texts
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service
from worker.engine.mlx.model.loader import LoadedWeights

#: The second is long enough for a block on the disk.
TEXTS = (prompt_texts(1)[0], LONG_TEXT, prompt_texts(2)[1])
LONG = TEXTS.index(LONG_TEXT)
BLOCK_TOKENS = 256
WAIT_S = 300.0

pytestmark = pytest.mark.timeout(scaled(1800))


@pytest.fixture(scope="module")
def expected(
    request: pytest.FixtureRequest, kept: KeptAnswers, real_model: Callable[[str], Path]
) -> list[str]:
    """Return the texts of mlx-lm; a load of the weights is spared where they are kept."""
    tokenizer = mlx_lm.utils.load_tokenizer(real_model(MODEL))
    if not kept.answers.keys() >= set(TEXTS):
        weights: LoadedWeights = request.getfixturevalue("smollm2")
        found = kept.of(weights, TEXTS, TOKENS)
    else:
        found = [kept.answers[text] for text in TEXTS]
    return [tokenizer.decode(one.answer.tokens) for one in found]


@pytest.fixture(scope="module")
def service(
    real_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    directory = real_model(MODEL)
    served = Service(
        tmp_path_factory.mktemp("real") / "data",
        env={"SEMANTIC_MODEL__ID": str(directory), "SEMANTIC_MODEL__NAME": "smollm2"},
    ).start()
    yield served
    assert served.stop() == 0, served.log()


def test_answers_survive_a_killed_worker(service: Service, expected: list[str]) -> None:
    with ServiceLog(service) as log, ExitStack() as stack:
        _fill_disk(service, log)
        jobs = [_submit(log, text) for text in TEXTS]
        readers = [stack.enter_context(JobReader(service.base_url, job)) for job in jobs]
        for reader in readers:
            reader.wait_for(4)
        service.kill_part("worker.main")
        assert [reader.whole() for reader in readers] == expected
        assert len(readers[LONG].attempts) > 1, "the long answer was not interrupted"
        _reused(log, jobs[LONG])
        service.wait_ready()


@pytest.mark.nightly  # tests/e2e/faults/test_swaps.py swaps smaller models by day
def test_answers_are_the_same_after_a_swap_and_back(service: Service, expected: list[str]) -> None:
    with ServiceLog(service) as log, ExitStack() as stack:
        _fill_disk(service, log)
        _swap(log, DEMO_MODEL)
        _swap(log, "smollm2")
        again = [_submit(log, text) for text in TEXTS]
        ends = [log.http.get(f"/v1/jobs/{job}/stream") for job in again]
        assert all(reply.status_code == 200 for reply in ends)
        found = [stack.enter_context(JobReader(service.base_url, job)) for job in again]
        assert [reader.whole() for reader in found] == expected
        _reused(log, again[LONG])


def _fill_disk(service: Service, log: ServiceLog) -> None:
    """Read the long prompt, and wait for its first block."""
    ended(log.http, _submit(log, LONG_TEXT, 1), within_s=WAIT_S)
    wait_until(
        lambda: next(service.data_dir.rglob(f"*-root-{BLOCK_TOKENS}.kv"), None),
        what="the first block on the disk",
    )


def _reused(log: ServiceLog, job: str) -> None:
    """The last attempt of a job found its prompt on the disk."""
    events = log.events(stream=job, type="AttemptStarted")
    last = events[-1]["data"]
    assert last["cache_source"] == "disk", last
    assert last["cached_tokens"] >= BLOCK_TOKENS, last
    usage = log.job(job)["usage"]
    assert usage["cached_tokens"] >= BLOCK_TOKENS, usage


def _submit(log: ServiceLog, text: str, tokens: int = TOKENS) -> str:
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0}
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

    done = wait_until(swap, lambda one: one["ended_at"] is not None, within_s=WAIT_S, what="swap")
    assert done["state"] == "done", done
