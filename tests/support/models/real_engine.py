"""Prompts for trained networks, their answers by mlx-lm, and an engine to compare with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from domain.chat.generation import Outcome, PreparedPrompt
from domain.values import Sampling
from ops.clock import SystemClock
from tests.support.models.engine_probe import (
    PATIENCE_S,
    CollectingSink,
    ask,
    finished,
    submit_prompt,
)
from tests.support.polling import scaled
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import StepResult

#: Small, so that a short prompt has several.
BLOCK_TOKENS = 16
KV_BYTES = 1 << 29
ROWS_MAX = 8

_TOPICS = (
    "a hash table",
    "the water cycle",
    "a binary search in Python",
    "the city of Lisbon",
    "how bread is baked",
    "a queue with two stacks",
    "the moons of Jupiter",
    "a letter to a landlord",
    "recursion",
    "the history of tea",
)
_FORMS = (
    "Explain {} to a beginner.",
    "Write a short list of facts about {}.",
    "Repeat this line three times, word for word: I am reading about {} today, and I like it.",
    "What is the most common mistake about {}, and how is it avoided?",
    "Write a paragraph about {} that ends with a question.",
)


def prompt_texts(count: int) -> list[str]:
    """Return different prompts, at most fifty; neighbours differ in topic and form."""
    topics, forms = len(_TOPICS), len(_FORMS)
    return [_FORMS[n % forms].format(_TOPICS[(n + n // topics) % topics]) for n in range(count)]


@dataclass(frozen=True, slots=True)
class Reference:
    """An answer of mlx-lm's own loop: one sequence, a plain cache.

    Attributes:
        margins: For each token, the distance of its log-probability from that of the second one.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...]

    def first(self, count: int) -> Reference:
        """Return the beginning."""
        return Reference(self.tokens[:count], self.margins[:count])


def reference(weights: LoadedWeights, prompt: Sequence[int], tokens_max: int) -> Reference:
    """Return the greedy answer, without the token that ends it."""
    tokens, margins = [], []
    steps = generate_step(mx.array(list(prompt)), weights.network, max_tokens=tokens_max)
    for token, logprobs in steps:
        if int(token) in weights.end_ids:
            break
        likeliest: Any = mx.sort(logprobs)[-2:].tolist()
        tokens.append(int(token))
        margins.append(likeliest[1] - likeliest[0])
    return Reference(tuple(tokens), tuple(margins))


def differences(
    prompts: Sequence[str], answers: Sequence[Outcome], expected: Sequence[Reference], ends: Any
) -> list[str]:
    """Return a line for each answer that parts from its reference, with the margin there."""
    lines = []
    for prompt, answer, want in zip(prompts, answers, expected, strict=True):
        found = tuple(token for token in answer.token_ids if token not in ends)
        if found == want.tokens:
            continue
        pairs = zip(found, want.tokens, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), len(found))
        margin = want.margins[at] if at < len(want.margins) else None
        lines.append(f"{prompt!r} parts at token {at}, margin {margin}")
    return lines


@dataclass(eq=False)
class RealEngine:
    """An engine, and what its steps did.

    Attributes:
        rows: Sequences that got tokens, for each step.
    """

    engine: BatchEngine
    runners: list[BatchRunner]
    rows: list[int]
    opened: threading.Event = field(default_factory=threading.Event)
    submitted: int = 0

    def alone(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Outcome]:
        """Answer one prompt after the other."""
        self.opened.set()
        return [finished(self._submit(prompt, tokens)) for prompt in prompts]

    def together(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Outcome]:
        """Answer the prompts in batches of ``ROWS_MAX``; the rows of each begin together."""
        answers: list[Outcome] = []
        for n in range(0, len(prompts), ROWS_MAX):
            self.opened.clear()
            handles = [self._submit(prompt, tokens) for prompt in prompts[n : n + ROWS_MAX]]
            self.opened.set()
            answers += [finished(handle) for handle in handles]
        return answers

    def _submit(self, prompt: Sequence[int], tokens: int) -> Any:
        self.submitted += 1
        prepared = PreparedPrompt(
            tokens=tuple(prompt),
            cached_tokens=0,
            cache_source="none",
            max_tokens=tokens,
            sampling=Sampling(temperature=0),
        )
        return submit_prompt(self.engine, f"job-{self.submitted}", prepared)


@contextmanager
def real_engine(weights: LoadedWeights, *, speculates: bool = False) -> Iterator[RealEngine]:
    """Run an engine on a loaded network, with an empty cache."""
    opened, rows, runners = threading.Event(), list[int](), list[BatchRunner]()

    class Watched(BatchRunner):
        def step(self) -> StepResult:
            assert opened.wait(scaled(PATIENCE_S)), "the test never opened the gate"
            result = super().step()
            rows.append(len({uid for uid, _, _ in result.tokens}))
            return result

    def make() -> BatchRunner:
        runner = Watched(
            load_weights=lambda: weights,
            kv_budget_bytes=KV_BYTES,
            block_tokens=BLOCK_TOKENS,
        )
        runner.speculates = speculates
        runners.append(runner)
        return runner

    engine = BatchEngine(
        runner_factory=make, sink=CollectingSink(), clock=SystemClock(), max_batch_size=ROWS_MAX
    )
    engine.start()
    try:
        yield RealEngine(engine, runners, rows, opened)
    finally:
        opened.set()
        engine.close(0)


def rendered(weights: LoadedWeights, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the tokens of prompts, by the model's own template."""
    return [weights.model.render(ask(text)).tokens for text in texts]
