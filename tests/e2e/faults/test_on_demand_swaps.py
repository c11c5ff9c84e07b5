"""Jobs for a registered model cause a swap to it, where ``models.swap`` is ``on_demand``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.two_models import TwoModels

ON_DEMAND = {"SEMANTIC_MODELS__SWAP": "on_demand"}
SOON = {"domain.model.swaps.RESIDENCE_MIN_S": 1.0, "domain.model.swaps.WAIT_MAX_S": 2.0}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoModels]:
    models = TwoModels(tmp_path_factory.mktemp("on_demand"), env=ON_DEMAND, constants=SOON)
    yield models
    assert models.close() == 0, models.service.log()


def test_a_request_waits_for_the_swap_to_its_model(two: TwoModels) -> None:
    other = {"a": "b", "b": "a"}[two.wait_served()]
    before = len(two.wanted.swaps)
    body = {"model": other, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
    reply = two.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-semantic-model"] == other
    assert [swap.reason for swap in two.wanted.swaps[before:]] == ["on_demand"]


def test_jobs_of_both_models_are_answered_by_their_own(two: TwoModels) -> None:
    before = len(two.wanted.swaps)
    jobs = {
        two.submit(f"Story {n}.", tokens=8, model=name): name for n in range(3) for name in "ab"
    }
    for job_id, model in jobs.items():
        job = two.ended(job_id)
        assert (job["status"], job["answered_by"]) == ("completed", model), job
    # Jobs of one model run together.
    assert len(two.wanted.swaps) - before <= 2
