"""Vectors beside a running batch: its tokens, its contexts and its memory stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from domain.chat.embedding import EmbeddingInputs
from domain.chat.generation import GenerationTask
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.kv.contexts import MemoryStats
from domain.model.registry import ModelEntry, ModelKind
from domain.values import JobId, SamplingWish
from ops.clock import SystemClock
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.tiny_embedder import make_tiny_embedder
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.embedding.engine import EmbeddingEngine, shape_of
from worker.engine.mlx.embedding.lane import EmbeddingLane
from worker.engine.mlx.memory.at_load import DeviceBudget
from worker.engine.mlx.memory.device import EmbeddingAccount, ProcessDevice
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner

pytestmark = pytest.mark.mlx

#: Room for about two of the conversations below.
BUDGET = 320_000
TEXTS = ((7,) * 300,) * 3


class _Bench:
    """An engine with a short budget and an embedding model of more than the watch tolerates."""

    def __init__(self, directory: Path, embedder: Path) -> None:
        entry = ModelEntry(name="notes", source=str(embedder), kind=ModelKind.EMBEDDING)
        account = EmbeddingAccount(ProcessDevice(), shape_of(entry)[1].memory_bytes)
        self.lane = EmbeddingLane(account)
        self.vectors = EmbeddingEngine(entry, self.lane, None)
        budget = DeviceBudget(device=account, batch=4, pinned_bytes=BUDGET, reserve=account)
        source = ModelEntry(name="tiny", source=str(directory), context_length=1000)
        self.runner: BatchRunner | None = None

        def new_runner() -> BatchRunner:
            self.runner = BatchRunner(
                load_weights=lambda: load_weights(source),
                prefill_step_tokens=64,
                kv_budget_bytes=budget,
                block_tokens=32,
            )
            return self.runner

        self.engine = BatchEngine(
            runner_factory=new_runner,
            sink=CollectingSink(),
            clock=SystemClock(),
            max_batch_size=4,
        )
        self.engine.beside = self.lane
        self.lane.wake = self.engine.wake

    def embed(self, number: int) -> GenerationHandle:
        """Submit the texts."""
        request = ChatRequest(
            model="notes",
            messages=(),
            max_tokens=0,
            sampling=SamplingWish(),
            embedding=EmbeddingInputs(texts=TEXTS),
        )
        task = GenerationTask(
            job_id=JobId(f"job-v{number}"),
            attempt=1,
            prompt=self.vectors.prepare(request),
            emitted=(),
            first_item=1,
            stop=(),
        )
        return self.vectors.submit(task)

    def memory(self) -> MemoryStats:
        """Return the figures of the contexts."""
        assert self.runner is not None
        stats = self.runner.memory()
        assert stats is not None
        return stats


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("beside")
    # 20 MB of weights: more than the watch takes for roundings of the allocator.
    embedder = make_tiny_embedder(directory / "notes", vocab_size=80_000)
    return make_tiny_llama(directory / "chat"), embedder


@contextmanager
def _running(models: tuple[Path, Path]) -> Iterator[_Bench]:
    bench = _Bench(*models)
    bench.engine.start()
    try:
        yield bench
    finally:
        bench.engine.close(0)


def _converse(bench: _Bench, *, embeds: bool) -> tuple[list[tuple[int, ...]], MemoryStats]:
    """Answer three turns of two agents in turn; return the answers and the contexts after them."""
    vectors = [bench.embed(number) for number in range(2)] if embeds else []
    answers: list[tuple[int, ...]] = []
    for turn in range(3):
        requests = [ask(f"{agent} {turn} " + "fox " * 40, max_tokens=60) for agent in "ab"]
        handles = [
            submit(bench.engine, f"job-{turn}-{place}", request)
            for place, request in enumerate(requests)
        ]
        answers += [finished(handle).token_ids for handle in handles]
    for handle in vectors:
        found = finished(handle).vectors
        assert found is not None
        assert len(list(found.each())) == len(TEXTS)
    # The ceiling is what the machine has available at the moment.
    return answers, replace(bench.memory(), ceiling_bytes=0)


def test_a_batch_computes_and_keeps_the_same_with_and_without_vectors(
    models: tuple[Path, Path],
) -> None:
    with _running(models) as bench:
        alone, memory = _converse(bench, embeds=False)
    with _running(models) as bench:
        beside, memory_beside = _converse(bench, embeds=True)
        assert bench.engine.is_alive()
    assert memory.evicted_blocks > 0, "the budget is short"
    assert beside == alone
    assert memory_beside == memory


def test_vectors_are_computed_while_no_sequence_runs(models: tuple[Path, Path]) -> None:
    with _running(models) as bench:
        assert finished(bench.embed(1)).vectors is not None
        handle = bench.embed(2)
    outcome = finished(handle)
    assert outcome.vectors is not None or outcome.failure is not None, "each request has its end"
