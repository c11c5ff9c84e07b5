"""Requests for vectors when the engine stops without another call of the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.chat.embedding import EmbeddingInputs
from domain.chat.generation import GenerationTask
from domain.chat.items import Failed
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.errors import DeviceFailed, Draining, EngineLost
from domain.model.registry import ModelEntry, ModelKind
from domain.values import JobId, SamplingWish
from ops.clock import SystemClock
from tests.support.fakes.engine import ScriptedRunner
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.tiny_embedder import make_tiny_embedder
from tests.support.polling import scaled
from worker.engine.engine import BatchEngine
from worker.engine.mlx.embedding.engine import EmbeddingEngine
from worker.engine.mlx.embedding.lane import EmbeddingLane
from worker.engine.mlx.memory.device import EmbeddingAccount, ProcessDevice

pytestmark = pytest.mark.mlx

WITHIN_S = 10.0


class _Shared:
    """A scripted batch, whose steps wait for the test, with a real lane beside it."""

    def __init__(self, embedder: Path) -> None:
        entry = ModelEntry(name="notes", source=str(embedder), kind=ModelKind.EMBEDDING)
        self.lane = EmbeddingLane(EmbeddingAccount(ProcessDevice(), 1 << 30))
        self.lane.account.is_granted = True
        self.vectors = EmbeddingEngine(entry, self.lane, None)
        self.batch = ScriptedRunner({"long": "abcdefgh" * 20})
        self.engine = BatchEngine(
            runner_factory=lambda: self.batch,
            sink=CollectingSink(),
            clock=SystemClock(),
            max_batch_size=4,
        )
        self.engine.beside = self.lane
        self.lane.wake = self.engine.wake

    def embed(self) -> GenerationHandle:
        """Submit a text."""
        request = ChatRequest(
            model="notes",
            messages=(),
            max_tokens=0,
            sampling=SamplingWish(),
            embedding=EmbeddingInputs(texts=((7,) * 300,)),
        )
        task = GenerationTask(
            job_id=JobId("job-v"),
            attempt=1,
            prompt=self.vectors.prepare(request),
            emitted=(),
            first_item=1,
            stop=(),
        )
        return self.vectors.submit(task)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[_Shared]:
    shared = _Shared(make_tiny_embedder(tmp_path))
    shared.batch.gate.clear()
    shared.engine.start()
    yield shared
    shared.batch.gate.set()
    shared.engine.close(0)


def _failure(handle: GenerationHandle) -> Failed:
    outcome = handle.wait(scaled(WITHIN_S))
    assert outcome is not None, "the handle was never resolved"
    assert outcome.failure is not None
    return outcome.failure


def test_device_error_of_a_step_ends_the_requests_for_vectors(shared: _Shared) -> None:
    chat = submit(shared.engine, "job-a", ask("long"))
    vectors = shared.embed()
    shared.batch.fault = RuntimeError("[malloc] Unable to allocate 8 bytes.")
    shared.batch.gate.set()
    failure = finished(chat).failure
    assert failure is not None
    assert failure.error == DeviceFailed.code
    failure = _failure(vectors)
    assert failure.error in {Draining.code, DeviceFailed.code}
    assert failure.retryable
    with pytest.raises(EngineLost):
        shared.embed()


def test_stuck_step_ends_the_requests_for_vectors(shared: _Shared) -> None:
    chat = submit(shared.engine, "job-a", ask("long"))
    vectors = shared.embed()
    shared.engine.abandon("a step does not return")
    failure = finished(chat).failure
    assert failure is not None
    assert failure.retryable
    assert _failure(vectors).retryable


def test_only_requests_that_have_begun_get_the_failure_of_the_engine(shared: _Shared) -> None:
    failure = Failed(error=DeviceFailed.code, message="the device failed", retryable=True)
    lane = EmbeddingLane(shared.lane.account)
    shared.vectors._lane = lane
    begun = shared.embed()
    lane.run_slice(0.0)
    waiting = shared.embed()
    lane.abandon(failure)
    assert _failure(begun) == failure
    assert _failure(waiting).error == Draining.code
    # The engine thread may come back from the slice.
    while lane.run_slice(0.01):
        pass
    assert _failure(begun) == failure
