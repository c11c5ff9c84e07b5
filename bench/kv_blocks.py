"""What do cutting and gathering KV blocks cost, compared with copying the same bytes?

``python -m bench.kv_blocks``, at the KV shape of SmolLM2-135M. Each figure is the best of a few
runs in milliseconds. The baseline ``copy`` is one concatenation of the same bytes, cut into the
same blocks, without the product's code.
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
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.raw import from_raw, to_raw
from worker.engine.mlx.kv.split import extract

LAYERS, HEADS, DIM = 30, 3, 64
CONTEXTS = (2048, 4096, 8192, 16384)
RUNS = 7

LAYER = LayerSpec(kind=LayerKind.FULL, kv_heads=HEADS, key_dim=DIM, value_dim=DIM, element_bytes=2)
SPEC = ModelCacheSpec(layers=(LAYER,) * LAYERS, dtype="bfloat16")


def main() -> None:
    """Print both tables in Markdown."""
    print(f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, {LAYERS} layers of")
    print(f"{HEADS} heads of {DIM} in bfloat16, blocks of {BLOCK_TOKENS} tokens; ms\n")
    print("| tokens | MB | copy | gather | ratio | extract all | extract one |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for tokens in CONTEXTS:
        print(_row(tokens))
        mx.clear_cache()
    block = extract(filled(BLOCK_TOKENS), 0, BLOCK_TOKENS, cached_tokens=BLOCK_TOKENS)
    assert block is not None
    payload = to_raw(block)
    print(f"\none block ({block.nbytes / 1e6:.1f} MB): to_raw {_ms(lambda: to_raw(block)):.2f} ms,")
    print(f"from_raw {_ms(lambda: from_raw(payload, BLOCK_TOKENS)):.2f} ms")


def _row(tokens: int) -> str:
    caches = filled(tokens)
    borders = range(0, tokens, BLOCK_TOKENS)
    blocks = [cut(caches, start, tokens) for start in borders]
    plain = _ms(lambda: _concatenate(blocks))
    gathered = _ms(lambda: gather(SPEC, blocks, None, 0, empty))
    every = _ms(lambda: [cut(caches, start, tokens) for start in borders])
    last = tokens - BLOCK_TOKENS
    one = _ms(lambda: cut(caches, last, tokens))
    figures = " | ".join(f"{figure:.1f}" for figure in (every, one))
    return (
        f"| {tokens} | {tokens * LAYER.token_bytes * LAYERS / 1e6:.0f} | {plain:.1f}"
        f" | {gathered:.1f} | {gathered / plain:.2f} | {figures} |"
    )


def _concatenate(blocks: list[BlockArrays]) -> None:
    mx.eval(
        [
            mx.concatenate([block.tensors[name] for block in blocks], axis=2)
            for name in blocks[0].tensors
        ]
    )


def cut(caches: list[Any], start: int, held: int) -> BlockArrays:
    """Cut the block that begins at ``start`` out of caches that hold ``held`` tokens."""
    block = extract(caches, start, start + BLOCK_TOKENS, cached_tokens=held)
    assert block is not None
    return block


def empty() -> list[Any]:
    """Return empty caches of the shape."""
    return [KVCache() for _ in range(LAYERS)]


def filled(tokens: int) -> list[Any]:
    """Return caches that hold so many tokens of noise."""
    caches = empty()
    for cache in caches:
        keys = mx.random.normal((1, HEADS, tokens, DIM)).astype(mx.bfloat16)
        cache.state = (keys, keys + 1, tokens)
    mx.eval([cache.state[:2] for cache in caches])
    return caches


def _ms(work: Callable[[], object]) -> float:
    times = []
    work()
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
