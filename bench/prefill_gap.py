"""How long do running streams pause while a long prompt is prefilled?

``python -m bench.prefill_gap [--model semantic-demo] [--prompts 8192,16384] [--streams 3]
[--gaps 0,100,50]``. Drives the runner without threads or text, so a gap is the time between two
tokens of one sequence during prefill. The baseline is gap setting 0, which prefills pieces of full
length, one between any two decode steps.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from bench.figures import percentile
from domain.values import Sampling
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admission

STREAM_PROMPT_TOKENS = 64
#: Steps before the long prompt is submitted, to measure the pace of decoding.
WARM_STEPS = 30


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="semantic-demo")
    parser.add_argument("--prompts", default="8192,16384")
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--gaps", default="0,100,50")
    options = parser.parse_args()
    print(f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, {options.model},")
    print(f"{options.streams} streams\n")
    print(
        "| prompt | gap setting ms | gap p50 ms | p95 | max | tok/s of a stream | TTFT s | CPU s |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for prompt in map(int, options.prompts.split(",")):
        for gap_max_ms in map(float, options.gaps.split(",")):
            row = _row(options.model, prompt, options.streams, gap_max_ms)
            print(f"| {prompt} | {gap_max_ms:.0f} | {row} |", flush=True)


def _row(model: str, prompt_tokens: int, streams: int, gap_max_ms: float) -> str:
    settings: dict[str, Any] = {"gap_max_ms": gap_max_ms} if gap_max_ms >= 0 else {}
    runner = BatchRunner(
        load_weights=lambda: replace(load_weights(ModelSource(id=model)), end_ids=frozenset()),
        prefill_step_tokens=256,
        kv_budget_bytes=2 << 30,
        **settings,
    )
    runner.load()
    for seed in range(streams):
        runner.insert(_admission(STREAM_PROMPT_TOKENS, seed))
    for _ in range(WARM_STEPS):
        runner.step()
    joined = runner.insert(_admission(prompt_tokens, streams))
    assert joined is not None, "there is room"
    long = joined.uid
    began, cpu_began = time.perf_counter(), time.process_time()
    token_times: dict[int, list[float]] = {}
    while long not in token_times:
        step = runner.step()
        now = time.perf_counter()
        for uid, _, _ in step.tokens:
            token_times.setdefault(uid, []).append(now)
    ttft_s, cpu_s = token_times.pop(long)[0] - began, time.process_time() - cpu_began
    gaps = [
        1000 * (later - earlier)
        for times in token_times.values()
        for earlier, later in zip([began, *times], times, strict=False)
    ]
    rate = len(gaps) / streams / ttft_s
    runner.reset()
    p50, p95 = percentile(gaps, 0.5), percentile(gaps, 0.95)
    return f"{p50:.0f} | {p95:.0f} | {max(gaps):.0f} | {rate:.1f} | {ttft_s:.1f} | {cpu_s:.1f}"


def _admission(tokens: int, seed: int) -> Admission:
    rng = random.Random(seed)
    return Admission(
        tokens=tuple(rng.randrange(300, 3000) for _ in range(tokens)),
        first_index=0,
        max_new_tokens=1 << 20,
        sampling=Sampling(temperature=0),
    )


if __name__ == "__main__":
    main()
