"""What do the moves of KV caches cost, compared with copying the same bytes?

``python -m bench.kv_moves``, at the KV shape of SmolLM2-135M. Each figure is the best of a few runs
in milliseconds. The baseline ``copy`` is one copy of the same arrays without the product's code.
``gather`` makes a row from a parked context, ``cut`` reads all of its blocks, ``trim`` shortens it
to half in memory, ``adopt`` makes it run again in the same buffers.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from domain.kv.spec import BLOCK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx.kv.codec import BlockArrays
from worker.engine.mlx.kv.context_caches import ContextCaches

LAYERS, HEADS, DIM = 30, 3, 64
CONTEXTS = (2048, 4096, 8192, 16384)
RUNS = 7

LAYER = LayerSpec(kind=LayerKind.FULL, kv_heads=HEADS, key_dim=DIM, value_dim=DIM, element_bytes=2)
SPEC = ModelCacheSpec(layers=(LAYER,) * LAYERS, dtype="bfloat16")


def main() -> None:
    """Print the table in Markdown."""
    print(f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, {LAYERS} layers of")
    print(f"{HEADS} heads of {DIM} in bfloat16, blocks of {BLOCK_TOKENS} tokens; ms\n")
    print("| tokens | MB | copy | gather | ratio | cut | trim | adopt |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for tokens in CONTEXTS:
        print(_row(tokens))
        mx.clear_cache()


def _row(tokens: int) -> str:
    source = filled(tokens)
    plain = _ms(lambda: _copied(source))
    gathered = _ms(lambda: _gathered(source, tokens))
    cuts = _ms(lambda: blocks_of(source, tokens))
    trims = min(
        _once(filled(tokens), lambda one: one.keep(0, tokens // 2, tokens // 2)) for _ in "abc"
    )
    adopts = _ms(lambda: source.set_tokens(tokens))
    figures = " | ".join(f"{figure:.1f}" for figure in (cuts, trims, adopts))
    size_mb = tokens * LAYER.token_bytes * LAYERS / 1e6
    return (
        f"| {tokens} | {size_mb:.0f} | {plain:.1f} | {gathered:.1f} | {gathered / plain:.2f} |"
        f" {figures} |"
    )


def _copied(source: ContextCaches) -> None:
    mx.eval([mx.contiguous(one + 0) for leaf in source.leaves for one in (leaf.keys, leaf.values)])


def _gathered(source: ContextCaches, tokens: int) -> None:
    row = ContextCaches(SPEC, [KVCache() for _ in range(LAYERS)])
    for _ in row.reserve(tokens):
        pass
    for start in range(0, tokens, BLOCK_TOKENS * 2):
        for _ in row.copy_from(source, start, start + BLOCK_TOKENS * 2):
            pass
    row.set_tokens(tokens)


def blocks_of(source: ContextCaches, tokens: int) -> list[BlockArrays]:
    """Return copies of all whole blocks of a context."""
    return [
        source.read(start, start + BLOCK_TOKENS)
        for start in range(0, tokens - BLOCK_TOKENS + 1, BLOCK_TOKENS)
    ]


def filled(tokens: int) -> ContextCaches:
    """Return the caches of a context of noise."""
    caches: list[Any] = [KVCache() for _ in range(LAYERS)]
    for cache in caches:
        keys = mx.random.normal((1, HEADS, tokens, DIM)).astype(mx.bfloat16)
        cache.state = (keys, keys + 1, tokens)
    mx.eval([cache.state[:2] for cache in caches])
    return ContextCaches(SPEC, caches)


def _once(source: ContextCaches, move: Callable[[ContextCaches], object]) -> float:
    started = time.perf_counter()
    move(source)
    return 1e3 * (time.perf_counter() - started)


def _ms(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
