"""Does it pay to prefill several prompts of one length in common passes?

Usage: python -m bench.prefill_together
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

from worker.engine.mlx.rows.decode_rows import Row, prefill
from worker.engine.mlx.rows.ragged_attention import install_ragged_attention

PIECE_TOKENS = 128
ROUNDS = 7
#: Prompts, and tokens of each.
WORKLOADS = ((4, 32), (4, 128), (4, 512), (2, 512))
VOCABULARY = 2048
CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
}


def main() -> None:
    """Print a table of the ratios of common passes to passes of one prompt."""
    network = Model(ModelArgs.from_dict(CONFIG))
    mx.eval(network.parameters())
    assert install_ragged_attention(network), "rows share a pass"
    print(
        "| prompts | tokens each | mean time to the end of a prompt, ratio | time for all, ratio |"
    )
    print("|--:|--:|--:|--:|")
    for prompts, tokens in WORKLOADS:
        mean, whole = _ratios(network, prompts, tokens)
        print(f"| {prompts} | {tokens} | {mean:.2f} | {whole:.2f} |", flush=True)


def _ratios(network: Any, prompts: int, tokens: int) -> tuple[float, float]:
    together, apart = [], []
    for number in range(ROUNDS):
        texts = [
            [(number + 7 * n + at) % VOCABULARY for at in range(tokens)] for n in range(prompts)
        ]
        together.append(_ends(network, [texts]))
        apart.append(_ends(network, [[text] for text in texts]))
    mean = _median(map(statistics.mean, together)) / _median(map(statistics.mean, apart))
    return mean, _median(map(max, together)) / _median(map(max, apart))


def _median(figures: Iterable[float]) -> float:
    return statistics.median(figures)


def _ends(network: Any, groups: Sequence[Sequence[list[int]]]) -> list[float]:
    """Prefill one group after another; return the seconds until each prompt was computed."""
    started, ends = time.perf_counter(), []
    for texts in groups:
        rows = [Row(n, make_prompt_cache(network), []) for n in range(len(texts))]
        for at in range(0, len(texts[0]), PIECE_TOKENS):
            prefill(network, rows, [text[at : at + PIECE_TOKENS] for text in texts])
        ends += [time.perf_counter() - started] * len(texts)
    return ends


if __name__ == "__main__":
    main()
