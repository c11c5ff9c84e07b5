"""``BatchEngine`` draws the greedy tokens of mlx-lm on trained weights: alone, in batches, reused.

mlx-lm's own loop is the reference: one sequence, a plain cache, the same network in float32.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from domain.chat.generation import Outcome
from tests.support.models.real_engine import (
    ROWS_MAX,
    Reference,
    differences,
    prompt_texts,
    real_engine,
    reference,
    rendered,
)
from worker.engine.mlx.model.loader import LoadedWeights

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What is answered, and the answers of mlx-lm.

    Attributes:
        length: Most tokens of an answer.
    """

    weights: LoadedWeights
    texts: list[str]
    prompts: list[tuple[int, ...]]
    length: int
    expected: list[Reference]

    def check(self, answers: list[Outcome]) -> None:
        """Every token equals that of mlx-lm."""
        ends = self.weights.end_ids
        assert differences(self.texts, answers, self.expected, ends) == []


@pytest.fixture(
    scope="module",
    params=[(6, 32), pytest.param((50, 64), marks=pytest.mark.nightly)],
    ids=lambda size: f"{size[0]} prompts of {size[1]} tokens",
)
def task(request: pytest.FixtureRequest, smollm2: LoadedWeights) -> Task:
    count, length = request.param
    texts = prompt_texts(count)
    prompts = rendered(smollm2, texts)
    expected = [reference(smollm2, prompt, length) for prompt in prompts]
    return Task(smollm2, texts, prompts, length, expected)


def test_answers_alone_equal_those_of_mlx_lm(task: Task) -> None:
    with real_engine(task.weights) as engine:
        task.check(engine.alone(task.prompts, task.length))
        assert max(engine.rows) == 1


def test_answers_in_batches_and_after_reuse_equal_those_of_mlx_lm(task: Task) -> None:
    with real_engine(task.weights) as engine:
        task.check(engine.together(task.prompts, task.length))
        assert max(engine.rows) == min(ROWS_MAX, len(task.prompts))
        again = engine.together(task.prompts, task.length)
        task.check(again)
        assert all(answer.usage.cached_tokens for answer in again)


def test_answers_with_speculation_equal_those_of_mlx_lm(task: Task) -> None:
    with real_engine(task.weights, speculates=True) as engine:
        task.check(engine.together(task.prompts, task.length))
        (runner,) = engine.runners
        _log.info("speculation: %s", runner.drafts)
        assert runner.drafts.accepted_tokens > 0
