"""Parked contexts in 8 bits: half the memory, values within a step, and all of the tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import pytest

from domain.kv.contexts import Context
from domain.kv.spec import ModelCacheSpec
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench
from tests.support.models.tiny_architectures import FALCON_H1_WIDE, LLAMA, QWEN3_WIDE, Architecture
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.codec import Packing
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.window_cache import make_row_caches

TOKENS = 5 * BLOCK + 3
PROMPTS = [random_tokens(10 * BLOCK + 5, seed) for seed in (1, 2, 3)]


# --- the arrays of one context ---------------------------------------------------------------


@pytest.fixture(scope="module")
def spec() -> ModelCacheSpec:
    return Bench(QWEN3_WIDE).reuse._spec


def _filled(spec: ModelCacheSpec, dtype: mx.Dtype = mx.float32) -> ContextCaches:
    caches = ContextCaches(spec, make_row_caches(QWEN3_WIDE.make(mx.float32), BLOCK))
    mx.random.seed(7)
    for leaf in caches.leaves:
        leaf.update_and_fetch(
            *(mx.random.normal((1, 2, TOKENS, 64)).astype(dtype) for _ in range(2))
        )
    return caches


def _all(caches: ContextCaches, first: int = 0, last: int = TOKENS) -> list[mx.array]:
    return list(caches.read(first, last).tensors.values())


def _error(exact: list[mx.array], found: list[mx.array]) -> float:
    """Return the largest difference, in steps of the quantisation."""
    pairs = zip(exact, found, strict=True)
    return max(
        float(mx.abs(one - other).max() * 255 / (one.max() - one.min())) for one, other in pairs
    )


def test_packed_layers_hold_the_same_tokens_within_a_step(spec: ModelCacheSpec) -> None:
    caches, groups = _filled(spec), Packing(spec, Storage.INT8).groups
    exact, exact_bytes = _all(caches), caches.nbytes
    assert caches.pack(groups, 1 << 40)
    assert caches.is_packed
    assert caches.nbytes <= exact_bytes * 9 // 32, "of four bytes 1.125 are left"
    assert 0 < _error(exact, _all(caches)) <= 1
    first, last = BLOCK - 3, 2 * BLOCK + 1
    parts = [one[:, :, first:last] for one in exact]
    assert _error(parts, _all(caches, first, last)) <= 1


def test_only_as_many_layers_are_packed_as_are_needed(spec: ModelCacheSpec) -> None:
    caches, groups = _filled(spec), Packing(spec, Storage.INT8).groups
    exact = _all(caches)
    assert not caches.pack(groups, 1)
    found = _all(caches)
    assert [bool(mx.array_equal(*pair)) for pair in zip(exact, found, strict=True)] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert caches.pack(groups, 1 << 40)


def test_packed_context_is_copied_cut_and_runs_again(spec: ModelCacheSpec) -> None:
    caches, groups = _filled(spec), Packing(spec, Storage.INT8).groups
    exact = _all(caches)
    caches.pack(groups, 1 << 40)
    row = ContextCaches(spec, make_row_caches(QWEN3_WIDE.make(mx.float32), BLOCK))
    for _ in row.reserve(6 * BLOCK):
        pass
    for _ in row.copy_from(caches, 0, TOKENS):
        pass
    row.set_tokens(TOKENS)
    assert _error(exact, _all(row)) <= 1
    caches.keep(0, 4 * BLOCK, 4 * BLOCK)
    assert caches.is_packed
    assert _error([one[:, :, : 4 * BLOCK] for one in exact], _all(caches, 0, 4 * BLOCK)) <= 1
    caches.set_tokens(3 * BLOCK)
    for _ in caches.reserve(5 * BLOCK):
        pass
    assert not caches.is_packed
    assert [leaf.keys.shape[2] for leaf in caches.leaves] == [5 * BLOCK] * 3
    assert _error([one[:, :, : 3 * BLOCK] for one in exact], _all(caches, 0, 3 * BLOCK)) <= 1


# --- the engine ------------------------------------------------------------------------------


def _context(bench: Bench, prompt: list[int]) -> Context:
    (found,) = (
        one for one in bench.reuse.pool.contexts() if one.token_ids[: len(prompt)] == prompt
    )
    return found


def _budget(contexts: float) -> int:
    bench = Bench(QWEN3_WIDE)
    size_bytes = bench.reuse.row_bytes(len(PROMPTS[0]) + 8)
    bench.close()
    return int(contexts * size_bytes)


@pytest.mark.parametrize("storage", list(Storage))
def test_contexts_that_do_not_fit_are_packed_before_they_are_freed(storage: Storage) -> None:
    bench = Bench(QWEN3_WIDE, budget_bytes=_budget(1.6), ram_storage=storage)
    first = bench.run_alone(PROMPTS[0], 4)
    bench.run_alone(PROMPTS[1], 4)
    bench.check()
    again = [*PROMPTS[0], *first.tokens, 5, 6]
    run = bench.run_alone(again, 4)
    bench.check()
    whole = len(PROMPTS[0]) + 3
    if storage is Storage.INT8:
        assert run.cached >= whole
    else:
        assert run.cached < whole
    assert len(run.tokens) == 4
    assert not _context(bench, again).is_packed, "it ran in exact form"
    bench.close()


def test_the_least_recently_used_context_is_packed_and_at_last_freed() -> None:
    bench = Bench(QWEN3_WIDE, budget_bytes=_budget(1.5), ram_storage=Storage.INT8)
    for prompt in PROMPTS:
        bench.run_alone(prompt, 4)
        bench.check()
    assert _context(bench, PROMPTS[1]).is_packed
    assert not _context(bench, PROMPTS[2]).is_packed
    bench.close()


@pytest.mark.parametrize(
    "architecture", [QWEN3_WIDE, FALCON_H1_WIDE, LLAMA], ids=lambda one: one.name
)
def test_many_turns_within_little_memory_keep_the_accounts(architecture: Architecture) -> None:
    bench = Bench(architecture, ram_storage=Storage.INT8)
    size_bytes = bench.reuse.row_bytes(len(PROMPTS[0]) + 8)
    bench.close()
    bench = Bench(architecture, budget_bytes=int(2.2 * size_bytes), ram_storage=Storage.INT8)
    talks = [list(prompt) for prompt in PROMPTS]
    for turn in range(3):
        for talk in talks:
            run = bench.run_alone(talk, 4)
            bench.check()
            talk += [*run.tokens, turn]
    bench.close()


def test_contexts_with_short_heads_stay_exact() -> None:
    short = Bench(LLAMA, ram_storage=Storage.INT8)
    exact = Bench(LLAMA)
    assert not Packing(short.reuse._spec, Storage.INT8)
    assert short.reuse.fingerprint == exact.reuse.fingerprint


@pytest.fixture
def process(process: Callable[..., DiskBench]) -> Callable[..., DiskBench]:
    return partial(process, QWEN3_WIDE)


def test_blocks_of_packed_contexts_have_names_of_their_own(
    process: Callable[..., DiskBench],
) -> None:
    process(ram_storage=Storage.INT8).run_alone(PROMPTS[0], 4)
    assert process().run_alone(PROMPTS[0], 4).cached == 0
    assert process(ram_storage=Storage.INT8).run_alone(PROMPTS[0], 4).cached > 9 * BLOCK


def test_only_contexts_that_the_disk_has_are_packed(process: Callable[..., DiskBench]) -> None:
    bench = process(budget_bytes=_budget(1.9), ram_storage=Storage.INT8)
    bench.run_alone(PROMPTS[0], 4)
    bench.settle()
    context = _context(bench, PROMPTS[0])
    assert context.is_saved
    bench.run_alone(PROMPTS[1], 4)
    assert bench.reuse.store.caches(context).is_packed
    bench.check()
