"""A swap loses no stream and no job, whatever dies during it, asked for or on demand.

Between adapters of one model it keeps the weights, and no block serves two adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from domain.model.wanted_model import SwapState
from tests.support.clients.job_reader import JobReader
from tests.support.processes.two_models import TwoModels

STREAMS = 4
TOKENS = 300
#: More than two blocks of 256 tokens.
LONG = "Once upon a time there was a fox that lived in a wood. " * 60


#: Longer than a few blocks of the cache.
HARBOUR = "The harbour is grey. " * 12


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoModels]:
    models = TwoModels(
        tmp_path_factory.mktemp("swaps"),
        # Jobs that name a registered model cause a swap to it.
        env={"SEMANTIC_MODELS__SWAP": "on_demand"},
        constants={
            "api.app.PING_S": 0.2,
            "domain.model.swaps.RESIDENCE_MIN_S": 1.0,
            "domain.model.swaps.WAIT_MAX_S": 2.0,
        },
        adapters=("pirate", "formal"),
    )
    yield models
    assert models.close() == 0, models.service.log()


def other(model: str) -> str:
    return "b" if model == "a" else "a"


def test_running_streams_finish_on_their_model_and_a_swap_back_is_warm(two: TwoModels) -> None:
    # The list of models may still have the one before; a job of "a" is answered by it alone.
    first = two.ended(two.submit(LONG, tokens=4, model="a"))
    assert first["status"] == "completed"
    two.wait_served("a")
    with ExitStack() as stack:
        jobs = [two.submit(f"Story {n}.", tokens=TOKENS) for n in range(STREAMS)]
        readers = [stack.enter_context(JobReader(two.service.base_url, job)) for job in jobs]
        for reader in readers:
            reader.wait_for(5)
        process = pid(two)
        swapped = two.swap("b")
        assert swapped.returncode == 0, swapped.stderr
        assert all(reader.whole() for reader in readers)
        assert {reader.connections for reader in readers} == {1}
        assert all(reader.attempts == {1} for reader in readers)
    two.wait_served("b")
    assert two.status()["model"] == "b"
    assert pid(two) != process
    assert two.swap("a", "--json").returncode == 0
    again = two.ended(two.submit(LONG, tokens=4))
    assert again["usage"]["cached_tokens"] >= 512, again
    assert again["output"] == first["output"]


def test_streams_that_wait_for_a_swap_are_pinged_and_end(two: TwoModels) -> None:
    before = two.wait_served()
    running = two.submit("A long story.", tokens=1200)
    with ExitStack() as stack:
        first = stack.enter_context(JobReader(two.service.base_url, running))
        first.wait_for(5)
        swap = two.request(other(before), drain_s=120)
        assert two.wait_for(swap["id"], SwapState.DRAINING) is SwapState.DRAINING
        waiting = stack.enter_context(
            JobReader(two.service.base_url, two.submit("Another story.", tokens=5))
        )
        # The next worker starts nothing yet, so that the wait is long however fast the swap is.
        two.http.post("/admin/pause").raise_for_status()
        events = _message_events(two)
        kinds = [next(events) for _ in range(2)]
        assert two.wait_for(swap["id"], SwapState.DONE) is SwapState.DONE
        two.http.post("/admin/resume").raise_for_status()
        kinds += events
        assert first.whole()
        assert waiting.whole()
    two.wait_served(other(before))
    assert "message_delta" in kinds, kinds
    assert kinds.index("ping") < kinds.index("message_delta")
    assert kinds[-1] == "message_stop"
    progress = [event.data for event in waiting.events if event.kind == "progress"]
    assert progress[0]["phase"] == "queued"


def _message_events(two: TwoModels) -> Iterator[str]:
    """Yield the names of the events of a message that is streamed."""
    body = {
        "model": "claude-any",
        "max_tokens": 5,
        "stream": True,
        "messages": [{"role": "user", "content": "A third story."}],
    }
    with two.http.stream("POST", "/v1/messages", json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                yield line.removeprefix("event: ")


@pytest.mark.parametrize(
    ("model", "why"),
    [("corrupt", "cannot be loaded"), ("gone", "no directory"), ("no/such", "not served here")],
)
def test_model_that_cannot_be_served_leaves_the_one_before(
    two: TwoModels, model: str, why: str
) -> None:
    before = two.wait_served()
    job = two.submit("A story.", tokens=TOKENS)
    swapped = two.swap(model, "--drain", "60")
    assert swapped.returncode == 1
    assert why in swapped.stderr
    two.wait_served(before)
    assert two.ended(job)["status"] == "completed"


STEPS = (
    SwapState.REQUESTED,
    SwapState.DRAINING,
    SwapState.SAVING,
    SwapState.RESTARTING,
    SwapState.LOADING,
)
#: The kills of every run of the tests; the others are nightly.
SLICE = {
    (SwapState.REQUESTED, "broker"),
    (SwapState.SAVING, "api"),
    (SwapState.LOADING, "worker"),
}
KILLS = [
    pytest.param(step, part, marks=() if (step, part) in SLICE else pytest.mark.nightly)
    for step in STEPS
    for part in ("worker", "api", "broker")
]


@pytest.mark.redis
@pytest.mark.parametrize(("step", "part"), KILLS)
def test_kill_at_a_step_ends_with_a_model_and_every_job(
    two: TwoModels, step: SwapState, part: str
) -> None:
    before = two.wait_served()
    jobs = [two.submit(f"Story {n} of {step}.", tokens=TOKENS) for n in range(STREAMS)]
    swap = two.request(other(before))
    two.wait_for(swap["id"], step)
    two.service.part(part).kill()
    assert two.wait_for(swap["id"]) in {SwapState.DONE, SwapState.ROLLED_BACK}
    assert two.wait_served() in {"a", "b"}
    for job in jobs:
        assert two.ended(job)["status"] == "completed"


def test_a_request_waits_for_the_swap_to_its_model(two: TwoModels) -> None:
    wanted = other(two.wait_served())
    before = len(two.wanted.swaps)
    body = {"model": wanted, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
    reply = two.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-semantic-model"] == wanted
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


def test_a_swap_to_an_adapter_stays_in_the_process_and_shares_no_block(two: TwoModels) -> None:
    if two.wait_served() != "a":
        swap(two, "a")
    process = pid(two)
    first = {"a": ask(two)}
    for name in ("pirate", "formal"):
        swap(two, name)
        assert pid(two) == process
        first[name] = ask(two)
    # Of its own blocks the model may have the beginning, which other prompts share.
    assert (first["pirate"][1], first["formal"][1]) == (0, 0)
    assert len({text for text, _ in first.values()}) == 3
    for name in ("pirate", "a", "formal"):
        swap(two, name)
        text, cached = ask(two)
        assert text == first[name][0]
        assert cached > first[name][1], name
    assert pid(two) == process


def test_an_adapter_that_cannot_be_loaded_leaves_the_model(two: TwoModels) -> None:
    if two.wait_served() != "a":
        swap(two, "a")
    weights = two.service.data_dir.parent / "pirate" / "adapters.safetensors"
    aside = weights.rename(weights.with_suffix(".aside"))
    try:
        done = two.swap("pirate")
    finally:
        aside.rename(weights)
    assert done.returncode != 0
    assert "adapters.safetensors missing" in done.stdout + done.stderr
    assert two.wait_served() == "a"


def swap(two: TwoModels, model: str) -> None:
    done = two.swap(model)
    assert done.returncode == 0, done.stdout + done.stderr
    two.wait_served(model)


def ask(two: TwoModels) -> tuple[str, int]:
    """Return the answer, and how many tokens of its prompt the cache had."""
    job = two.ended(two.submit(HARBOUR, tokens=24))
    assert job["status"] == "completed", job
    return job["output"]["text"], job["usage"]["cached_tokens"]


def pid(two: TwoModels) -> int:
    return int(two.service.part("worker").pid)
