"""What drawing by each rule adds to a step: ``python -m bench.sampling``.

A network of the shape of Qwen3-0.6B with random weights decodes eight rows; each round takes one
step of it and one draw by each rule, in turn. CPU time is that of all threads of the process; with
``OPENBLAS_NUM_THREADS=1`` no thread waits for another.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.qwen3 import Model, ModelArgs

from bench.report.section import (
    print_conditions,
    print_table,
    print_verdict,
    use_worker_allocator,
)
from domain.values import Sampling
from worker.engine.mlx.cpu import use_openblas
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow

ROWS, PROMPT_TOKENS = 8, 1000
#: The cache is short, so that a step is not longer than in a new conversation.
CACHED_TOKENS = 16
#: Most that a rule may add, as a share of a step.
SHARE_MAX = 0.02
_PENALTIES = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "logit_bias": ((7, 1.5),),
}
_XTC = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties and bias": _PENALTIES,
    "min_p": {"min_p": 0.05},
    "XTC": _XTC,
    "XTC at every other token": {**_XTC, "xtc_probability": 0.5},
    "XTC behind min_p": {**_XTC, "min_p": 0.05},
}


def main() -> None:
    """Measure, print a table and whether each rule is cheap enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    use_worker_allocator()
    started = time.monotonic()
    use_openblas()
    mx.set_default_device(mx.cpu)
    network = _network()
    cache = make_prompt_cache(network)
    mx.eval(network(mx.zeros((ROWS, CACHED_TOKENS), mx.int32), cache=cache)[:, -1])
    samplers = {name: _sampler(rules) for name, rules in RULES.items()}
    tokens = mx.zeros(ROWS, mx.int32)
    step_ms: list[float] = []
    draw_ms: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(rounds):
        logits, took_ms = _measured(lambda: network(tokens[:, None], cache=cache)[:, -1])
        step_ms.append(took_ms)
        for name, sampler in samplers.items():
            _, took_ms = _measured(partial(sampler, logits, tokens))
            draw_ms[name].append(took_ms)
    step = median(step_ms)
    rows, dear = [], []
    for name, took in draw_ms.items():
        added = median(a - b for a, b in zip(took, draw_ms["plain"], strict=True))
        rows.append([name, f"{median(took):.1f}", f"{added:.2f}", f"{added / step:.2%}"])
        dear += [name] * (added / step > SHARE_MAX)
    print_conditions(started)
    print(f"\na step of {ROWS} rows: {step:.0f} ms of CPU\n")
    print_table(["draw", "CPU, ms", "more than plain, ms", "of a step"], rows)
    beyond = ", ".join(dear) or "no rule"
    print_verdict(reached=not dear, why=f"{beyond} adds more than {SHARE_MAX:.0%}")


def _network() -> Model:
    shape = ModelArgs(
        model_type="qwen3",
        hidden_size=1024,
        num_hidden_layers=28,
        intermediate_size=3072,
        num_attention_heads=16,
        rms_norm_eps=1e-6,
        vocab_size=151_936,
        num_key_value_heads=8,
        max_position_embeddings=40_960,
        rope_theta=1e6,
        head_dim=128,
        tie_word_embeddings=True,
    )
    network = Model(shape)
    mx.eval(network.parameters())
    return network


def _sampler(rules: dict[str, Any]) -> BatchSampler:
    sampler = BatchSampler(lambda size: list(range(size)))
    for uid in range(ROWS):
        tokens = list(range(uid, uid + PROMPT_TOKENS))
        sampler.add(uid, SamplerRow(Sampling(seed=uid, **rules), 200, tokens=tokens))
    return sampler


def _measured(work: Callable[[], mx.array]) -> tuple[mx.array, float]:
    """Return a computed array, and the CPU time in milliseconds."""
    before = time.process_time()
    array = work()
    mx.eval(array)
    return array, 1000 * (time.process_time() - before)


if __name__ == "__main__":
    main()
