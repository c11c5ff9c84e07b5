"""Contexts that do not fit together take turns, and no token changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from domain.model.registry import ModelEntry
from domain.values import Priority, WaitingFor
from ops.clock import SystemClock
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench
from tests.support.models.tiny_architectures import LLAMA
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner

#: Two layers of two heads of 16, keys and values of 4 bytes.
TOKEN_BYTES = 512
BLOCK_TOKENS = 32
TURNS = 3
Start = Callable[..., BatchEngine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    source = ModelEntry(name="tiny", source=str(make_tiny_llama(tmp_path / "tiny")))
    started: list[BatchEngine] = []

    def start(sink: CollectingSink, *, budget_tokens: int = 1 << 16) -> BatchEngine:
        blocks = -(-budget_tokens // BLOCK_TOKENS)
        engine = BatchEngine(
            runner_factory=lambda: BatchRunner(
                load_weights=lambda: load_weights(source),
                prefill_step_tokens=64,
                kv_budget_bytes=blocks * BLOCK_TOKENS * TOKEN_BYTES,
                block_tokens=BLOCK_TOKENS,
            ),
            sink=sink,
            clock=SystemClock(),
            max_batch_size=4,
        )
        engine.start()
        started.append(engine)
        return engine

    yield start
    for engine in started:
        engine.close(0)


def turns_of(engine: BatchEngine, agent: str) -> list[str]:
    """Let an agent have its turns, one after another, and return its answers."""
    text, answers = f"{agent} speaks of many things. " * 6, []
    for turn in range(TURNS):
        outcome = finished(submit(engine, f"job-{agent}-{turn}", ask(text, max_tokens=40)))
        assert outcome.failure is None
        answers.append(outcome.text)
        text += f"{agent} asks again. "
    return answers


def test_agents_that_do_not_fit_together_take_turns_and_answer_the_same(start: Start) -> None:
    agents = ("ann", "bob", "eve")
    free, sink = start(CollectingSink()), CollectingSink()
    alone = [turns_of(free, agent) for agent in agents]
    context = len(free.prepare(ask("ann speaks of many things. " * 6)).tokens) + 40
    tight = start(sink, budget_tokens=int(2.2 * context))
    with ThreadPoolExecutor(len(agents)) as pool:
        assert list(pool.map(lambda agent: turns_of(tight, agent), agents)) == alone
    waits = [
        progress.waiting_for
        for agent in agents
        for turn in range(TURNS)
        for progress in sink.progress(f"job-{agent}-{turn}")
        if progress.phase == "queued"
    ]
    assert WaitingFor.MEMORY in waits


def test_interactive_prompt_takes_the_memory_of_batch_work_that_continues_the_same(
    start: Start,
) -> None:
    batch, question = ask("a long report " * 4, max_tokens=300), ask("hello " * 62, max_tokens=10)
    free, sink = start(CollectingSink()), CollectingSink()
    report = finished(submit(free, "job-batch", batch))
    answer = finished(submit(free, "job-question", question))
    context = len(free.prepare(batch).tokens) + 300
    tight = start(sink, budget_tokens=context + BLOCK_TOKENS)
    assert len(tight.prepare(question).tokens) > 0.8 * context
    running = submit(tight, "job-batch", batch, priority=Priority.BATCH)
    sink.wait_for_items("job-batch", BLOCK_TOKENS)
    asked = finished(submit(tight, "job-question", question))
    assert running.wait(0) is None
    assert asked.token_ids == answer.token_ids
    assert finished(running).token_ids == report.token_ids
    assert any(progress.phase == "queued" for progress in sink.progress("job-batch"))


def test_short_request_beside_a_long_one_evicts_nothing_that_fits() -> None:
    others, long, short = random_tokens(8 * BLOCK, 1), random_tokens(20 * BLOCK, 2), [5] * 50
    # The running contexts with room for a block more, and the context of another agent.
    blocks = (23 + 6) + 10
    size = Bench(LLAMA).reuse._spec.live_bytes(BLOCK)
    bench = Bench(LLAMA, budget_bytes=blocks * size)
    bench.run_alone(others, 4)
    parked = bench.reuse.cached_prefix(tuple(others)).resident
    assert parked == len(others) - 1
    running = bench.join(long, 20)
    bench.step()
    beside = bench.join(short, 8)
    bench.finish(beside, running)
    assert bench.reuse.cached_prefix(tuple(others)).resident == parked
    assert beside.tokens == Bench(LLAMA, budget_bytes=None).run_alone(short, 8).tokens
    bench.close()
