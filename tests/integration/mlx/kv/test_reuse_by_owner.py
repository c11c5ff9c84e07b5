"""Reuse between owners: each continues its own contexts only, or whole blocks of all owners."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from domain.kv.owned_tokens import cache_ids, owned, sharing_blocks
from domain.values import Owner, Sampling
from tests.support.day_and_night import in_turn
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, MakeBench
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    VOCABULARY,
    Architecture,
)

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
FEW = (LLAMA, GEMMA3, GPT_OSS, FALCON_H1)


@in_turn("architecture, sampling", FEW, {"greedy": GREEDY, "sampled": SAMPLED})
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


# --- owners that share whole blocks --------------------------------------------------------------

PROMPT = tuple(random_tokens(3 * BLOCK + 9, 5))
ANN = sharing_blocks(Owner("ann"))
#: Right tokens of guesses that part within the third block.
RIGHT = (2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK + 7, 3 * BLOCK - 1)


def guess(right: int) -> tuple[int, ...]:
    """Return a prompt whose first ``right`` tokens are those of ``PROMPT``."""
    return (*PROMPT[:right], *((token + 1) % VOCABULARY for token in PROMPT[right:]))


def count(bench: Bench, right: int, name: str) -> int:
    """Return how many tokens of a guess of a key the cache counts, before and with the reply."""
    tokens = owned(guess(right), sharing_blocks(Owner(name)))
    foretold = bench.model.cached_prefix(cache_ids(tokens))
    run = bench.run_alone(tokens, 4)
    assert foretold.tokens == run.cached
    assert name == "ann" or foretold.known % BLOCK == 0
    return run.cached


@pytest.mark.parametrize("architecture", FEW, ids=lambda a: a.name)
def test_a_guess_of_another_key_counts_whole_blocks_however_much_of_the_next_is_right(
    bench: MakeBench, architecture: Architecture
) -> None:
    warm = bench(architecture)
    assert warm.run_alone(owned(PROMPT, ANN), 4).cached == 0
    # The first one makes the checkpoint that models with windows or states go on from.
    count(warm, RIGHT[0], "bob")
    assert {count(warm, right, f"guest-{right}") for right in RIGHT[1:]} == {2 * BLOCK}
    # The end of the prompt, which no block holds whole.
    assert count(warm, len(PROMPT), "carol") in (2 * BLOCK, 3 * BLOCK)


@pytest.mark.parametrize("architecture", FEW, ids=lambda a: a.name)
def test_a_key_continues_its_own_context_after_another_one_used_its_blocks(
    bench: MakeBench, architecture: Architecture
) -> None:
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture)
    said = warm.run_alone(owned(PROMPT, ANN), 4).tokens
    assert said == cold.run_alone(PROMPT, 4).tokens
    for right in RIGHT:
        tokens = owned(guess(right), sharing_blocks(Owner("bob")))
        assert warm.run_alone(tokens, 4).tokens == cold.run_alone(guess(right), 4).tokens
    again = warm.run_alone(owned(PROMPT, ANN), 4)
    assert (again.cached, again.tokens) == (len(PROMPT) - 1, said)


def test_a_key_parts_from_its_own_context_at_any_token(bench: MakeBench) -> None:
    for right in RIGHT:
        warm = bench(LLAMA)
        warm.run_alone(owned(PROMPT, ANN), 4)
        assert count(warm, right, "ann") == right


@pytest.mark.parametrize("architecture", [LLAMA, GPT_OSS, FALCON_H1], ids=lambda a: a.name)
def test_the_disk_shares_whole_blocks_and_the_ends_of_own_contexts(
    process: Callable[..., DiskBench], architecture: Architecture
) -> None:
    said = process(architecture).run_alone(owned(PROMPT, ANN), 4).tokens
    second = process(architecture)
    # Models with windows or states need a checkpoint, which only contexts in memory lead to.
    counts = {0, 2 * BLOCK} if second.reuse._spec.has_ends else {2 * BLOCK}
    for right in RIGHT[:3]:
        tokens = owned(guess(right), sharing_blocks(Owner(f"guest-{right}")))
        assert second.run_alone(tokens, 4).cached in counts
    tokens = owned(PROMPT, sharing_blocks(Owner("carol")))
    assert second.run_alone(tokens, 4).tokens == said
    third = process(architecture)
    again = third.run_alone(owned(PROMPT, ANN), 4)
    assert (again.cached, again.tokens, third.computed) == (len(PROMPT) - 1, said, 0)
