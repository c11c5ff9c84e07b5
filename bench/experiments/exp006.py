"""EXP-006: what does gathering a context cost?  ``python -m bench.experiments.exp006``.

Blocks are gathered for a context of 2K to 16K tokens: those of the demo model, cut during prefill,
and some of the KV shape of SmolLM2-135M (``bench.kv_blocks``). Baselines in the same run: copying
as many bytes with memcpy, and for the demo model computing the context in pieces of 256 tokens, as
the engine does without a prefix cache.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import numpy as np

from bench.experiments.report import (
    median_s,
    print_conditions,
    print_table,
    print_verdict,
    use_worker_allocator,
)
from bench.kv_blocks import CONTEXTS, SPEC, cut, empty, filled
from domain.kv.spec import BLOCK_TOKENS, ModelCacheSpec
from ops.setting_groups import DEMO_MODEL
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.model.loader import find_model

#: Size of the demo model's vocabulary.
VOCABULARY = 4096
RUNS = 7
#: Largest cost of a gather, as a multiple of copying the same bytes into new memory.
COPIES_MAX = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathering:
    """The time to gather a context, and the time to copy as many bytes."""

    size_bytes: int
    memcpy_ms: float
    copy_ms: float
    gather_ms: float

    def cells(self) -> tuple[str, ...]:
        return (
            f"{self.size_bytes / 1e6:.1f}",
            f"{self.memcpy_ms:.1f}",
            f"{self.copy_ms:.1f}",
            f"{self.gather_ms:.1f}",
            f"{self.gather_ms / self.copy_ms:.2f}",
        )


def main() -> None:
    """Print the table."""
    use_worker_allocator()
    started_s = time.monotonic()
    copies: list[float] = []
    shares: list[float] = []
    print_table(
        (
            "model",
            ">tokens",
            ">MB",
            ">memcpy ms",
            ">into new memory ms",
            ">gather ms",
            ">of new memory",
            ">prefill ms",
            ">prefill / gather",
        ),
        _rows(copies, shares),
    )
    print_verdict(
        reached=max(copies) <= COPIES_MAX,
        why=f"where the bytes count, gathering costs {min(copies):.2f} to {max(copies):.2f} times"
        f" a copy of them into new memory (goal: at most {COPIES_MAX}); for the demo model it"
        f" costs at most {max(shares):.3%} of computing the context.",
    )
    print_conditions(started_s)


def _rows(copies: list[float], shares: list[float]) -> Iterator[tuple[object, ...]]:
    for tokens in CONTEXTS:
        caches = filled(tokens)
        blocks = [cut(caches, start, tokens) for start in range(0, tokens, BLOCK_TOKENS)]
        caches.clear()
        gathering = _gathering(SPEC, blocks, empty)
        copies.append(gathering.gather_ms / gathering.copy_ms)
        yield "shape of SmolLM2-135M", tokens, *gathering.cells(), "", ""
        mx.clear_cache()
    network, *_ = mlx_lm.utils.load(str(find_model(DEMO_MODEL)))
    spec = probe_spec(network)
    for tokens, blocks, prefill_ms in _contexts(network):
        gathering = _gathering(spec, blocks, partial(make_row_caches, network))
        shares.append(gathering.gather_ms / prefill_ms)
        times = f"{prefill_ms / gathering.gather_ms:,.0f}"
        yield "demo model", tokens, *gathering.cells(), f"{prefill_ms:,.0f}", times


def _gathering(
    spec: ModelCacheSpec, blocks: Sequence[BlockArrays], make_cache: Callable[[], list[Any]]
) -> _Gathering:
    gathered = gather(spec, blocks, None, 0, make_cache)
    plain = np.ones(sum(cache.nbytes for cache in gathered), np.uint8)
    target = np.empty_like(plain)
    return _Gathering(
        size_bytes=plain.nbytes,
        memcpy_ms=1000 * median_s(partial(np.copyto, target, plain), RUNS),
        copy_ms=1000 * median_s(plain.copy, RUNS),
        gather_ms=1000 * median_s(partial(gather, spec, blocks, None, 0, make_cache), RUNS),
    )


def _contexts(network: Any) -> Iterator[tuple[int, list[BlockArrays], float]]:
    """Yield contexts of growing length, their blocks, and the time to compute them."""
    rng = random.Random(6)
    caches = make_row_caches(network)
    blocks: list[BlockArrays] = []
    spent_s = 0.0
    for tokens in range(BLOCK_TOKENS, max(CONTEXTS) + 1, BLOCK_TOKENS):
        piece = mx.array([[rng.randrange(VOCABULARY) for _ in range(BLOCK_TOKENS)]])
        started_s = time.perf_counter()
        mx.eval(network(piece, cache=caches), [cache.state for cache in caches])
        spent_s += time.perf_counter() - started_s
        blocks.append(cut(caches, tokens - BLOCK_TOKENS, tokens))
        if tokens in CONTEXTS:
            yield tokens, blocks, 1000 * spent_s


if __name__ == "__main__":
    main()
