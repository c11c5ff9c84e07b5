"""Contexts of unlike length decode apart, and nobody says anything else for it."""

from __future__ import annotations

import pytest

from domain.values import Sampling
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, Run
from tests.support.models.tiny_architectures import FALCON_H1, GEMMA3, LLAMA, Architecture

RULES = (Sampling(temperature=0), Sampling(temperature=0.9, top_p=0.95, seed=5))
LENGTHS = (5, 9 * BLOCK, 9 * BLOCK + 5, 40 * BLOCK)


def bounded(architecture: Architecture, padding_bytes_max: int) -> Bench:
    bench = Bench(architecture, step_tokens=8 * BLOCK)
    bench.runner.batches._padding_bytes_max = padding_bytes_max
    return bench


def decode_all(bench: Bench, runs: list[Run]) -> None:
    """Step until everybody decodes."""
    for _ in range(200):
        if bench.runner.batches.decoding == len(runs):
            return
        bench.step()
    pytest.fail("somebody never begins to decode")


def groups_of(bench: Bench) -> list[int]:
    return sorted(len(group) for group in bench.runner.batches.lengths)


@pytest.mark.parametrize("architecture", [LLAMA, GEMMA3, FALCON_H1], ids=lambda a: a.name)
@pytest.mark.parametrize("sampling", RULES, ids=["greedy", "sampled"])
def test_tokens_are_the_same_padded_grouped_and_alone(
    architecture: Architecture, sampling: Sampling
) -> None:
    prompts = [random_tokens(length, length) for length in LENGTHS]
    said = []
    for bound in (1 << 40, 2 * BLOCK * 1024, -1):
        bench = bounded(architecture, bound)
        runs = [bench.join(prompt, 24, sampling) for prompt in prompts]
        bench.finish()
        said.append([run.tokens for run in runs])
        bench.close()
    assert said[0] == said[1] == said[2]
    cold = Bench(architecture, budget_bytes=None)
    assert said[0] == [cold.run_alone(prompt, 24, sampling).tokens for prompt in prompts]


def test_like_lengths_share_a_group_and_unlike_ones_do_not() -> None:
    bench = bounded(LLAMA, 0)
    row_bytes = bench.runner._admission.row_bytes
    bench.runner.batches._padding_bytes_max = row_bytes(10 * BLOCK) - row_bytes(5)
    runs = [bench.join(random_tokens(length, length), 400) for length in LENGTHS]
    decode_all(bench, runs)
    assert groups_of(bench) == [1, 3]
    bench.leave(runs[3])
    assert groups_of(bench) == [3]
    bench.leave(runs[0])
    assert groups_of(bench) == [2]
    bench.close()


def test_groups_unite_when_those_between_them_have_left() -> None:
    bench = bounded(LLAMA, 0)
    row_bytes = bench.runner._admission.row_bytes
    # Room for one beside a longer one, not for two.
    bench.runner.batches._padding_bytes_max = row_bytes(9 * BLOCK) - row_bytes(5)
    runs = [bench.join(random_tokens(length, n), 400) for n, length in enumerate((5, 6, 9 * BLOCK))]
    decode_all(bench, runs)
    assert groups_of(bench) == [1, 2]
    bench.leave(runs[0])
    assert groups_of(bench) == [2]
    bench.close()


def test_groups_without_room_for_padding_stay_apart() -> None:
    lengths = (20, 12 * BLOCK)
    free = Bench(LLAMA)
    apart = sum(free.runner._admission.row_bytes(length + 30) for length in lengths)
    tight = Bench(LLAMA, budget_bytes=apart + 2 * free.reuse._spec.block_bytes, reuse=False)
    tight.runner.batches._padding_bytes_max = 1 << 40
    runs = [tight.wait(random_tokens(length, length), 30) for length in lengths]
    tight.let_in()
    decode_all(tight, runs)
    tight.check()
    assert groups_of(tight) == [1, 1]
    tight.drain()
    assert not any(run.paused for run in runs)
    for run in runs:
        assert run.tokens == Bench(LLAMA, budget_bytes=None).run_alone(run.prompt, 30).tokens
