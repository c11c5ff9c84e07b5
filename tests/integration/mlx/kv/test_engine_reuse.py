"""The engine with reuse: what its callers are told, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.model.registry import ModelEntry
from domain.values import Sampling
from ops.clock import SystemClock
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.runner_probe import check_accounts
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner

LONG = "the quick brown fox jumps over the lazy dog " * 12
SAMPLED = Sampling(temperature=1.0, seed=42)


class Engine(BatchEngine):
    """An engine whose runner can be looked at."""

    def __init__(self, model_dir: Path, sink: CollectingSink, budget_bytes: int | None) -> None:
        source = ModelEntry(name="tiny", source=str(model_dir))
        self.runner = BatchRunner(
            load_weights=lambda: load_weights(source),
            prefill_step_tokens=32,
            kv_budget_bytes=budget_bytes,
            block_tokens=32,
        )
        super().__init__(
            runner_factory=lambda: self.runner,
            sink=sink,
            clock=SystemClock(),
            max_batch_size=4,
        )
        self.start()

    @property
    def computed(self) -> int:
        return self.runner.sequences.tokens_prefilled


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def sink() -> CollectingSink:
    return CollectingSink()


@pytest.fixture
def engine(model_dir: Path, sink: CollectingSink) -> Iterator[Engine]:
    engine = Engine(model_dir, sink, 1 << 26)
    yield engine
    engine.close(0)


def test_usage_says_what_was_not_computed_again(engine: Engine) -> None:
    request = ask(LONG, max_tokens=12, sampling=SAMPLED)
    first = finished(submit(engine, "job-1", request))
    assert (first.usage.cached_tokens, first.usage.completion_tokens) == (0, 12)
    prepared = engine.prepare(request)
    known = len(prepared.tokens) - 1
    assert (prepared.cached_tokens, prepared.cache_source) == (known, "ram")
    before = engine.computed
    again = finished(submit(engine, "job-2", request))
    assert again.usage.cached_tokens == known
    assert again.token_ids == first.token_ids
    assert engine.computed == before


def test_identical_requests_at_once_compute_their_prompt_once(
    engine: Engine, model_dir: Path
) -> None:
    request = ask(LONG, max_tokens=12, sampling=SAMPLED)
    handles = [submit(engine, f"job-{n}", request) for n in range(4)]
    outcomes = [finished(handle) for handle in handles]
    prompt_tokens = len(engine.prepare(request).tokens)
    assert engine.computed == prompt_tokens - 1
    assert sorted(outcome.usage.cached_tokens for outcome in outcomes) == [
        0,
        *[prompt_tokens - 1] * 3,
    ]
    off = Engine(model_dir, CollectingSink(), None)
    try:
        expected = finished(submit(off, "job", request)).token_ids
        assert {outcome.token_ids for outcome in outcomes} == {expected}
    finally:
        off.close(0)


def test_one_that_waits_for_anothers_prompt_lets_others_pass(engine: Engine) -> None:
    handles = [
        submit(engine, f"job-{n}", ask(text, max_tokens=12))
        for n, text in enumerate((LONG * 3, LONG * 3, "something else"))
    ]
    outcomes = [finished(handle) for handle in handles]
    assert outcomes[0].token_ids == outcomes[1].token_ids
    # The long prompt takes dozens of steps, and the short one came last.
    assert outcomes[2].timings.first_token_ms < outcomes[1].timings.first_token_ms


def test_cancel_of_one_that_others_wait_for_lets_them_go_on(engine: Engine) -> None:
    request = ask(LONG * 3, max_tokens=12)
    first = submit(engine, "job-first", request)
    others = [submit(engine, f"job-{n}", request) for n in range(2)]
    first.cancel()
    finished(first)
    outcomes = [finished(other) for other in others]
    assert all(outcome.failure is None for outcome in outcomes)
    assert outcomes[0].token_ids == outcomes[1].token_ids


def test_next_attempt_goes_on_out_of_blocks(engine: Engine, sink: CollectingSink) -> None:
    request = ask(LONG, max_tokens=90, sampling=SAMPLED)
    whole = finished(submit(engine, "job-whole", request))
    items = sink.numbered("job-whole")
    before = engine.computed
    resumed = submit(engine, "job-resumed", request, attempt=2, emitted=items[: len(items) // 2])
    outcome = finished(resumed)
    assert (outcome.token_ids, outcome.text) == (whole.token_ids, whole.text)
    assert engine.computed == before
    assert outcome.usage.cached_tokens == outcome.usage.prompt_tokens


def test_broken_step_leaves_the_blocks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(LONG, max_tokens=12)
    first = finished(submit(engine, "job-1", request))
    step = engine.runner.step

    def broken() -> None:
        monkeypatch.setattr(engine.runner, "step", step)
        raise RuntimeError("the device went away")

    monkeypatch.setattr(engine.runner, "step", broken)
    failure = finished(submit(engine, "job-2", request)).failure
    assert failure is not None
    assert failure.retryable
    again = finished(submit(engine, "job-3", request))
    assert again.token_ids == first.token_ids
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert engine.runner.prefix_cache is not None
    check_accounts(engine.runner.prefix_cache.store)
