"""What own exponentials save on x86: ``python -m bench.exponentials``.

Attention over a piece of a prompt and SwiGLU of it, in the sizes of SmolLM2-135M, by MLX and by the
service in turn. CPU time is that of all threads; set ``OPENBLAS_NUM_THREADS=1``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import mlx.core as mx
from mlx_lm.models.activations import swiglu as swiglu_of_mlx_lm

from bench.report.section import print_conditions, print_table, use_worker_allocator
from worker.engine.mlx.cpu import use_openblas
from worker.engine.mlx.kv.cpu_attention import attention, has_slow_exponentials, swiglu

QUERY_HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 9, 3, 64, 1536
PIECE_TOKENS = 256
CONTEXTS = (256, 1000, 8000)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    use_worker_allocator()
    started = time.monotonic()
    mx.set_default_device(mx.cpu)
    if not has_slow_exponentials():
        parser.exit(1, "bench.exponentials: MLX has vector exponentials on this processor\n")
    use_openblas()
    rows = [_row(f"attention, {tokens} keys", *_attention(tokens), rounds) for tokens in CONTEXTS]
    rows.append(_row("SwiGLU", *_swiglu(), rounds))
    print_conditions(started)
    print_table(["a layer, 256 tokens", "MLX, CPU ms", "here, CPU ms", "faster"], rows)


def _attention(tokens: int) -> tuple[Callable[[], mx.array], Callable[[], mx.array]]:
    queries = mx.random.normal((1, QUERY_HEADS, PIECE_TOKENS, HEAD_DIM))
    keys = mx.random.normal((1, KV_HEADS, tokens, HEAD_DIM))
    values = mx.random.normal((1, KV_HEADS, tokens, HEAD_DIM))
    scale = HEAD_DIM**-0.5
    mx.eval(queries, keys, values)
    return (
        lambda: mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask="causal"
        ),
        lambda: attention(queries, keys, values, scale, "causal", None),
    )


def _swiglu() -> tuple[Callable[[], mx.array], Callable[[], mx.array]]:
    gate, x = (mx.random.normal((PIECE_TOKENS, HIDDEN)) for _ in range(2))
    mx.eval(gate, x)
    return lambda: swiglu_of_mlx_lm(gate, x), lambda: swiglu(gate, x)


def _row(
    name: str, theirs: Callable[[], mx.array], ours: Callable[[], mx.array], rounds: int
) -> tuple[str, ...]:
    pairs = [(_cpu_ms(theirs), _cpu_ms(ours)) for _ in range(rounds + 1)][1:]
    ratios = sorted(before / after for before, after in pairs)
    before, after = (median(column) for column in zip(*pairs, strict=True))
    spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return name, f"{before:.1f}", f"{after:.1f}", spread


def _cpu_ms(compute: Callable[[], mx.array]) -> float:
    started = time.process_time()
    mx.eval(compute())
    return (time.process_time() - started) * 1000


if __name__ == "__main__":
    main()
