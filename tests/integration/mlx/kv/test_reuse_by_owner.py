"""Reuse between owners: each continues its own contexts only."""

from __future__ import annotations

import pytest

from domain.kv.owned_tokens import owned
from domain.values import Sampling
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import MakeBench
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    QWEN3,
    Architecture,
)

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
FEW = (LLAMA, QWEN3, GEMMA3, GPT_OSS, FALCON_H1)


@pytest.mark.parametrize("architecture", FEW, ids=lambda a: a.name)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_owners_share_no_prefix_and_each_continues_its_own(
    bench: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture)
    prompt = tuple(random_tokens(71, 3))
    expected = cold.run_alone(prompt, 12, sampling).tokens
    whose = [None, "laptop", "ci"]
    for owner in whose:
        first = warm.run_alone(owned(prompt, owner), 12, sampling)
        assert (first.cached, first.tokens) == (0, expected)
    for owner in whose:
        again = warm.run_alone(owned(prompt, owner), 12, sampling)
        assert (again.cached, again.tokens) == (len(prompt) - 1, expected)
    longer = (*prompt, *expected, *random_tokens(9, 4))
    said = cold.run_alone(longer, 6, sampling).tokens
    for owner in whose:
        turn = warm.run_alone(owned(longer, owner), 6, sampling)
        assert turn.tokens == said
        assert turn.cached >= len(prompt)
