"""Decode of contexts of unequal length: mlx-lm's padded batch, ragged rows, and each row alone.

``python -m bench.mixed_lengths [--lengths 100,1000,8000,32000] [--steps 20]``. A random network
with the heads of SmolLM2-135M (3 of 64, bfloat16) in 8 layers; the contexts are filled with noise,
not computed, so that only decode is measured. The three run in turn on the same machine; memory is
what MLX holds and its peak, less the weights.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.rows.ragged_attention import install_ragged_attention
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences

LAYERS, HEADS, DIM, HIDDEN, VOCABULARY = 8, 3, 64, 192, 4096

Prepare = Callable[[Any, list[int]], Callable[[], object]]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="100,1000,8000,32000")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    lengths = [int(length) for length in options.lengths.split(",")]
    network = _network()
    spec = probe_spec(network)
    weights = _weights_bytes(network)
    alone = sum(map(spec.live_bytes, lengths)) / 1e6
    print(f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, {options.steps} steps,")
    print(f"weights {weights / 1e6:.0f} MB, the contexts alone {alone:.0f} MB\n")
    print("| rows | held MB | peak MB | step ms | tok/s |")
    print("|---|--:|--:|--:|--:|")
    for name, prepare in (("padded", _padded), ("ragged", _ragged), ("alone", _alone)):
        print(f"| {name} | {_row(prepare, network, lengths, options.steps)} |", flush=True)


def _row(prepare: Prepare, network: Any, lengths: list[int], steps: int) -> str:
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    step = prepare(network, lengths)
    step()
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    held = (mx.get_active_memory() - before) / 1e6
    peak = (mx.get_peak_memory() - before) / 1e6
    step_s = statistics.median(times)
    return f"{held:.0f} | {peak:.0f} | {1000 * step_s:.0f} | {len(lengths) / step_s:.1f}"


def _padded(network: Any, lengths: list[int]) -> Callable[[], object]:
    rows = [_filled(network, length) for length in lengths]
    caches = [BatchKVCache.merge(list(layer)) for layer in zip(*rows, strict=True)]
    mx.eval([cache.state[:2] for cache in caches])
    tokens = mx.array([[1]] * len(lengths))
    return lambda: mx.eval(mx.argmax(network(tokens, cache=caches)[:, -1], axis=-1))


def _ragged(network: Any, lengths: list[int]) -> Callable[[], object]:
    sequences = RunningSequences(
        network,
        lambda rows: mx.argmax(rows, axis=-1),
        lambda _: 0,
        ragged=install_ragged_attention(network),
    )
    for length in lengths:
        sequences.insert(
            JoinRequest(
                prompt=[1] * (length + 1), caches=_filled(network, length), tokens=[1] * length
            )
        )
    sequences.start_decoding()
    return sequences.decode


def _alone(network: Any, lengths: list[int]) -> Callable[[], object]:
    rows = [_filled(network, length) for length in lengths]
    token = mx.array([[1]])

    def step() -> None:
        for caches in rows:
            mx.eval(mx.argmax(network(token, cache=caches)[:, -1], axis=-1))

    return step


def _network() -> Any:
    mx.random.seed(1)
    arguments = llama.ModelArgs.from_dict(
        {
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "intermediate_size": 3 * HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": DIM,
            "rms_norm_eps": 1e-5,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 1 << 17,
        }
    )
    network = llama.Model(arguments)
    network.set_dtype(mx.bfloat16)
    mx.eval(network.parameters())
    return network


def _weights_bytes(network: Any) -> int:
    leaves: Any = tree_flatten(network.parameters())
    return sum(array.nbytes for _, array in leaves)


def _filled(network: Any, tokens: int) -> list[Any]:
    caches = make_prompt_cache(network)
    for cache in caches:
        keys = mx.random.normal((1, HEADS, tokens, DIM)).astype(mx.bfloat16)
        cache.state = (keys, keys + 1, tokens)
    mx.eval([cache.state[:2] for cache in caches])
    return list(caches)


if __name__ == "__main__":
    main()
