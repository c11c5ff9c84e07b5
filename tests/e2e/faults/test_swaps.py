"""A swap loses no stream and no job, whatever dies during it."""

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


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoModels]:
    constants = {"api.app.PING_S": 0.2}
    models = TwoModels(tmp_path_factory.mktemp("swaps"), constants=constants)
    yield models
    assert models.close() == 0, models.service.log()


def other(model: str) -> str:
    return "b" if model == "a" else "a"


def test_running_streams_finish_on_their_model_and_a_swap_back_is_warm(two: TwoModels) -> None:
    first = two.ended(two.submit(LONG, tokens=4))
    assert first["status"] == "completed"
    with ExitStack() as stack:
        jobs = [two.submit(f"Story {n}.", tokens=TOKENS) for n in range(STREAMS)]
        readers = [stack.enter_context(JobReader(two.service.base_url, job)) for job in jobs]
        for reader in readers:
            reader.wait_for(5)
        swapped = two.swap("b")
        assert swapped.returncode == 0, swapped.stderr
        assert all(reader.whole() for reader in readers)
        assert {reader.connections for reader in readers} == {1}
        assert all(reader.attempts == {1} for reader in readers)
    two.wait_served("b")
    assert two.status()["model"] == "b"
    assert two.swap("a", "--json").returncode == 0
    again = two.ended(two.submit(LONG, tokens=4))
    assert again["usage"]["cached_tokens"] >= 512, again
    assert again["output"] == first["output"]


def test_streams_that_wait_for_a_swap_are_pinged_and_end(two: TwoModels) -> None:
    before = two.wait_served()
    running = two.submit("A long story.", tokens=3000)
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
