"""A trained network whose layers look back 512 tokens answers as mlx-lm does: Gemma 3 270M."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx_lm
import pytest

from domain.model.registry import ModelEntry
from tests.support.models.real_engine import (
    differences,
    prompt_texts,
    real_engine,
    reference,
)
from worker.engine.mlx.model.loader import load_weights

TOKENS = 16
WINDOW_TOKENS = 512
#: A base model continues them; each has a block, and the last is longer than the window.
TEXTS = (*("\n".join(prompt_texts(50)[n : n + 3]) for n in range(5)), "\n".join(prompt_texts(50)))

pytestmark = pytest.mark.nightly


def test_answers_alone_together_and_after_reuse_equal_those_of_mlx_lm(
    real_model: Callable[[str], Path],
) -> None:
    directory = real_model("gemma3-270m")
    tokenizer = mlx_lm.utils.load_tokenizer(directory)
    prompts = [tuple(tokenizer.encode(text)) for text in TEXTS]
    assert len(prompts[-1]) > WINDOW_TOKENS
    weights = load_weights(ModelEntry(name="tiny", source=str(directory)))
    expected = [reference(weights, prompt, TOKENS) for prompt in prompts]
    with real_engine(weights) as engine:
        alone = engine.alone(prompts, TOKENS)
        again = engine.together(prompts, TOKENS)
        assert max(engine.rows) == len(prompts)
    with real_engine(weights) as engine:
        together = engine.together(prompts, TOKENS)
    for answers in (alone, again, together):
        assert differences(TEXTS, answers, expected, weights.end_ids) == []
    cached = [answer.usage.cached_tokens for answer in again]
    # The last prompt begins with the first, whose context may have gone on as that of the last.
    assert all(cached[1:]), cached
    assert cached[-1] > WINDOW_TOKENS, cached
