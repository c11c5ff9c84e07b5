"""``BatchEngine`` draws the greedy tokens of mlx-lm on trained weights: alone, in batches, reused.

mlx-lm's own loop is the reference: one sequence, a plain cache, the same network in float32.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from domain.chat.generation import Outcome
from tests.support.models.real_answers import (
    TOKENS,
    Answered,
    KeptAnswers,
    computed,
)
from tests.support.models.real_engine import ROWS_MAX, differences, prompt_texts, real_engine
from tests.support.models.runner_probe import make_drafts_free
from worker.engine.mlx.model.loader import LoadedWeights

#: Of those whose answers are kept: rows of one batch, which one of them leaves early.
PROMPTS_BY_DAY = 6

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What is answered, and the answers of mlx-lm.

    Attributes:
        length: Most tokens of an answer.
    """

    weights: LoadedWeights
    length: int
    answered: list[Answered]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [one.prompt for one in self.answered]

    def check(self, answers: list[Outcome]) -> None:
        """Every token equals that of mlx-lm."""
        texts = [one.text for one in self.answered]
        expected = [one.answer for one in self.answered]
        assert differences(texts, answers, expected, self.weights.end_ids) == []


@pytest.fixture(
    scope="module",
    params=[(PROMPTS_BY_DAY, TOKENS), pytest.param((50, 64), marks=pytest.mark.nightly)],
    ids=lambda size: f"{size[0]} prompts of {size[1]} tokens",
)
def task(request: pytest.FixtureRequest, smollm2: LoadedWeights, kept: KeptAnswers) -> Task:
    count, length = request.param
    return Task(smollm2, length, kept.of(smollm2, prompt_texts(count), length))


@pytest.mark.nightly
def test_kept_answers_are_those_of_mlx_lm(smollm2: LoadedWeights, kept: KeptAnswers) -> None:
    if not kept.answers:
        pytest.skip("they are of another model, or MLX has a GPU: none is used")
    now = [(one.text, one.answer.tokens) for one in computed(smollm2)]
    assert now == [(one.text, one.answer.tokens) for one in kept.answers.values()]


def test_answers_alone_and_then_together_equal_those_of_mlx_lm(task: Task) -> None:
    with real_engine(task.weights) as engine:
        task.check(engine.alone(task.prompts, task.length))
        assert max(engine.rows) == 1
        again = engine.together(task.prompts, task.length)
        task.check(again)
        assert max(engine.rows) == min(ROWS_MAX, len(task.prompts))
        assert all(answer.usage.cached_tokens for answer in again)


@pytest.mark.nightly  # by day with speculation only
def test_new_prompts_in_batches_equal_those_of_mlx_lm(task: Task) -> None:
    with real_engine(task.weights) as engine:
        task.check(engine.together(task.prompts, task.length))
        assert max(engine.rows) == min(ROWS_MAX, len(task.prompts))


def test_answers_with_speculation_equal_those_of_mlx_lm(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_drafts_free(monkeypatch)
    with real_engine(task.weights, speculates=True) as engine:
        task.check(engine.together(task.prompts, task.length))
        (runner,) = engine.runners
        _log.info("speculation: %s", runner.drafts)
        assert runner.drafts.accepted_tokens > 0
