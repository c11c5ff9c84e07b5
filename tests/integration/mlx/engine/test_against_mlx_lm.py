"""``BatchEngine`` samples the same greedy tokens as ``mlx_lm.generate``, alone and in a batch.

mlx-lm's own loop is the independent reference: one sequence, a plain cache, no batch and no prefix
cache.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from domain.chat.generation import Outcome, PreparedPrompt
from domain.values import ModelCard, Sampling
from ops.clock import SystemClock
from tests.support.models.engine_probe import PATIENCE_S, CollectingSink, finished, submit_prompt
from tests.support.models.families import ALL_ARCHITECTURES
from tests.support.models.runner_probe import shared_network
from tests.support.models.tiny_architectures import VOCABULARY, Architecture
from tests.support.polling import scaled
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.rows.ragged_states import RowSupport
from worker.engine.mlx.runner import BatchRunner
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.ports import LoadedModel, RenderedPrompt, StepResult

NEW_TOKENS = 8
#: Less than a block, blocks with a rest, whole blocks; all sequences outgrow the window of 12.
LENGTHS = (5, 43, 32, 21)
BLOCK = 16
CHUNK = 16
#: Least difference between the two highest log probabilities of the reference. Rounding errors are
#: far smaller, so they cannot change the greedy token.
MARGIN_MIN = 2e-3
#: Prompts of one length that are tried.
PROMPTS_MAX = 20


@dataclass(eq=False)
class _Gate:
    """Holds the first step back until all sequences are submitted, and counts rows per step."""

    opened: threading.Event = field(default_factory=threading.Event)
    rows: list[int] = field(default_factory=list)


class _GatedRunner(BatchRunner):
    def __init__(self, gate: _Gate, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate

    def step(self) -> StepResult:
        assert self._gate.opened.wait(scaled(PATIENCE_S)), "the test never opened the gate"
        result = super().step()
        self._gate.rows.append(len({uid for uid, _, _ in result.tokens}))
        return result


@pytest.fixture(
    scope="module", params=ALL_ARCHITECTURES, ids=lambda architecture: architecture.name
)
def shared(request: pytest.FixtureRequest) -> tuple[Any, RowSupport]:
    architecture: Architecture = request.param
    return shared_network(architecture)


@pytest.fixture(scope="module")
def network(shared: tuple[Any, RowSupport]) -> Any:
    return shared[0]


@pytest.fixture(scope="module")
def answered(network: Any) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the reference's answers to one prompt of each length, by the prompt."""
    rng = random.Random(20)
    return dict(_answered(network, rng, length) for length in LENGTHS)


@pytest.fixture(scope="module")
def prompts(answered: dict[tuple[int, ...], tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list(answered)


@pytest.fixture(scope="module")
def expected(answered: dict[tuple[int, ...], tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list(answered.values())


@pytest.fixture
def gate() -> _Gate:
    return _Gate()


@pytest.fixture
def engine(shared: tuple[Any, RowSupport], gate: _Gate) -> Iterator[BatchEngine]:
    network, support = shared
    engine = BatchEngine(
        runner_factory=lambda: _GatedRunner(
            gate,
            load_weights=lambda: LoadedWeights(network, frozenset(), _model(), support),
            prefill_step_tokens=CHUNK,
            kv_budget_bytes=1 << 26,
            block_tokens=BLOCK,
        ),
        sink=CollectingSink(),
        clock=SystemClock(),
        max_batch_size=len(LENGTHS),
    )
    engine.start()
    yield engine
    gate.opened.set()
    engine.close(0)


def test_sequences_alone_equal_the_reference(
    engine: BatchEngine,
    gate: _Gate,
    prompts: list[tuple[int, ...]],
    expected: list[tuple[int, ...]],
) -> None:
    gate.opened.set()
    first = [_outcome(engine, f"job-{n}", prompt) for n, prompt in enumerate(prompts)]
    assert [outcome.token_ids for outcome in first] == expected
    assert max(gate.rows) == 1
    # The second round starts from the blocks that the first one left in the prefix cache.
    again = [_outcome(engine, f"job-again-{n}", prompt) for n, prompt in enumerate(prompts)]
    assert [outcome.token_ids for outcome in again] == expected
    assert all(
        outcome.usage.cached_tokens for outcome in again if outcome.usage.prompt_tokens > BLOCK
    )


def test_sequences_in_one_batch_equal_the_reference(
    engine: BatchEngine,
    gate: _Gate,
    prompts: list[tuple[int, ...]],
    expected: list[tuple[int, ...]],
) -> None:
    handles = [
        submit_prompt(engine, f"job-{n}", _prepared(prompt)) for n, prompt in enumerate(prompts)
    ]
    gate.opened.set()
    assert [finished(handle).token_ids for handle in handles] == expected
    assert max(gate.rows) == len(prompts), "the sequences never shared a step"


def _answered(
    network: Any, rng: random.Random, length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first prompt that the reference answers without doubt, and its answer."""
    for _ in range(PROMPTS_MAX):
        prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(length))
        answer = _reference(network, prompt)
        if answer is not None:
            return prompt, answer
    raise AssertionError("the reference is in doubt about every prompt")


def _reference(network: Any, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the answer; ``None`` where rounding could change one of its tokens."""
    tokens = []
    for token, logprobs in generate_step(mx.array(prompt), network, max_tokens=NEW_TOKENS):
        likeliest = mx.sort(logprobs)
        margin = (likeliest[-1] - likeliest[-2]).item()
        assert isinstance(margin, float)
        if margin <= MARGIN_MIN:
            return None
        tokens.append(int(token))
    return tuple(tokens)


def _outcome(engine: BatchEngine, job_id: str, prompt: tuple[int, ...]) -> Outcome:
    return finished(submit_prompt(engine, job_id, _prepared(prompt)))


def _prepared(prompt: tuple[int, ...]) -> PreparedPrompt:
    return PreparedPrompt(
        tokens=prompt,
        cached_tokens=0,
        cache_source="none",
        max_tokens=NEW_TOKENS,
        sampling=Sampling(temperature=0),
    )


def _model() -> LoadedModel:
    table = [b"%d " % token for token in range(VOCABULARY)]
    return LoadedModel(
        card=ModelCard(
            id="tiny",
            fingerprint="sha256:" + "1" * 64,
            context_length=1024,
            description="Tiny.",
            created_at="2026-01-01T00:00:00Z",
        ),
        think_tags=None,
        render=lambda *_: RenderedPrompt((1,)),
        opens_thinking=lambda _: False,
        detokenizer=lambda: ByteDetokenizer(table),
    )
