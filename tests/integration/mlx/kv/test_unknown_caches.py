"""Contexts in caches that cannot be restored: they are counted by their growth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ConcatenateKVCache, RotatingKVCache, make_prompt_cache

from tests.support.models.runner_probe import BLOCK, Bench, Run
from tests.support.models.tiny_architectures import LLAMA, VOCABULARY
from worker.engine.mlx.kv.probe import GrowthSizes
from worker.engine.mlx.kv.window_cache import leaves

KEPT, WINDOW = 4, 40
PROMPTS = [[(3 * n + i) % VOCABULARY for i in range(20 + 13 * n)] for n in range(6)]
TOKENS = 12


def sinks() -> Any:
    """Return a network that keeps its first tokens beside a window."""
    return _with_caches(lambda: RotatingKVCache(max_size=WINDOW, keep=KEPT))


def exact() -> Any:
    """Return a network whose caches grow with each token and announce no bound."""
    return _with_caches(ConcatenateKVCache)


def _with_caches(make: Callable[[], Any]) -> Any:
    network = LLAMA.make(mx.float32)
    count = len(network.layers)
    network.make_cache = lambda: [make() for _ in range(count)]
    return network


NETWORKS = {"sinks": sinks, "exact": exact}


def held_bytes(bench: Bench) -> int:
    """Return the bytes of the caches of all running sequences."""
    found = [bench.runner.sequences.find(uid) for uid in bench.runs]
    return sum(leaf.nbytes for one in found if one is not None for leaf in leaves(one[0]))


def answers(network: Any, budget_bytes: int | None) -> tuple[list[Run], int]:
    """Return the ended sequences and the most bytes that they held at once."""
    bench = Bench(LLAMA, network=network, budget_bytes=budget_bytes)
    runs = [bench.wait(prompt, TOKENS) for prompt in PROMPTS]
    most = 0
    for _ in range(2000):
        bench.let_in()
        if not bench.waiting and all(run.ended for run in bench.runs.values()):
            break
        bench.step()
        bench.check()
        most = max(most, held_bytes(bench))
    assert all(run.ended and run.fault is None for run in runs)
    bench.close()
    return runs, most


@pytest.mark.parametrize("name", NETWORKS)
def test_a_small_budget_is_never_exceeded_and_all_answers_complete(name: str) -> None:
    network = NETWORKS[name]()
    free, most_free = answers(network, None)
    sizes = GrowthSizes(network, block_tokens=BLOCK, piece_tokens=BLOCK)
    longest = max(len(run.prompt) for run in free) + TOKENS
    budget = sizes.live_bytes(longest + BLOCK) * 5 // 4
    assert budget < most_free, "without a limit, more is held"
    runs, most = answers(network, budget)
    assert 0 < most <= budget
    assert [len(run.tokens) for run in runs] == [TOKENS] * len(runs)
    assert [run.tokens for run in runs] == [run.tokens for run in free]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("piece", [1, 7, 64, 300])
def test_estimates_are_upper_bounds(name: str, piece: int) -> None:
    network = NETWORKS[name]()
    sizes = GrowthSizes(network, block_tokens=BLOCK, piece_tokens=piece)
    caches, tokens = make_prompt_cache(network), 0
    for _ in range(600 // piece if piece > 1 else 40):
        network(mx.array([[1] * piece]), cache=caches)
        tokens += piece
        mx.eval([leaf.state for leaf in caches])
        assert sum(leaf.nbytes for leaf in caches) <= sizes.live_bytes(tokens)


def test_an_announced_bound_ends_the_growth() -> None:
    sizes = GrowthSizes(sinks(), block_tokens=BLOCK, piece_tokens=BLOCK)
    assert sizes.live_bytes(100_000) == sizes.live_bytes(1000)
    unbounded = GrowthSizes(exact(), block_tokens=BLOCK, piece_tokens=BLOCK)
    assert unbounded.live_bytes(100_000) > 50 * unbounded.live_bytes(1000)


class Growing:
    """One sequence whose caches take what the test says."""

    def __init__(self, size_bytes: int, tokens: int) -> None:
        self.nbytes = size_bytes
        self.tokens = tokens

    def find(self, uid: int) -> tuple[list[Any], list[int]] | None:
        return ([self], [0] * self.tokens) if uid == 1 else None


def test_a_sequence_that_takes_more_raises_the_estimates() -> None:
    sizes = GrowthSizes(exact(), block_tokens=BLOCK, piece_tokens=BLOCK)
    before = sizes.live_bytes(200)
    sizes.observe(Growing(before, 200), [1, 2])
    assert sizes.live_bytes(200) == before
    sizes.observe(Growing(3 * before, 200), [1, 2])
    assert sizes.live_bytes(200) == pytest.approx(3 * before, rel=0.01)


def test_a_budget_without_room_for_the_context_lowers_it() -> None:
    network = exact()
    sizes = GrowthSizes(network, block_tokens=BLOCK, piece_tokens=BLOCK)
    bench = Bench(LLAMA, network=network, budget_bytes=sizes.live_bytes(5 * BLOCK))
    assert bench.model.card.context_length == 4 * BLOCK
    bench.close()
