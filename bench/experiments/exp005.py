"""EXP-005: how many tokens per second do several agents get beside mlx-lm's BatchGenerator?

``python -m bench.experiments.exp005``. The engine in this process, without log and HTTP, and the
BatchGenerator take turns on the same requests: the demo model, a short prompt of its own for each
agent, all at once, greedy. Tokens per second are all generated tokens over the whole time, prefill
and detokenisation included. Figures are medians over the rounds; ``of raw`` is the median of the
ratios within a round, and ``best`` the ratio of the best rounds, which other load disturbs least.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import mlx_lm.utils

from bench.experiments.demo_engine import DemoEngine, outcome_of
from bench.experiments.report import (
    print_conditions,
    print_table,
    print_verdict,
    use_worker_allocator,
)
from bench.figures import figures_of
from bench.raw_batch import run_batch
from domain.chat.request import Message
from ops.setting_groups.models import DEMO_MODEL
from worker.engine.mlx.model.loader import find_model

AGENTS = (1, 3, 5, 7, 10)
ROUNDS = 4
MAX_TOKENS = 96
#: Required share of the bare generator's tokens per second.
SHARE_MIN = 0.95
#: Required gain of three or more agents over one, where the bare generator has it.
GAIN_MIN = 1.6
TOPICS = (
    *("a fox", "a boat", "the sea", "a clock", "the moon"),
    *("a bear", "a garden", "a train", "a king", "the rain"),
)


def main() -> None:
    """Print the table."""
    use_worker_allocator()
    started_s = time.monotonic()
    rates = _rates()
    median = {key: statistics.median(taken) for key, taken in rates.items()}
    shares = {
        agents: statistics.median(
            ours / theirs
            for ours, theirs in zip(rates[agents, "engine"], rates[agents, "raw"], strict=True)
        )
        for agents in AGENTS
    }
    over_one = {key: rate / median[1, key[1]] for key, rate in median.items()}
    print_table(
        (
            *(">agents", ">engine tok/s", ">raw tok/s", ">of raw", ">best"),
            *(">engine over 1", ">raw over 1"),
        ),
        [
            (
                agents,
                f"{median[agents, 'engine']:.0f}",
                f"{median[agents, 'raw']:.0f}",
                f"{shares[agents]:.0%}",
                f"{max(rates[agents, 'engine']) / max(rates[agents, 'raw']):.0%}",
                f"{over_one[agents, 'engine']:.2f}",
                f"{over_one[agents, 'raw']:.2f}",
            )
            for agents in AGENTS
        ],
    )
    gains = {
        agents: over_one[agents, "engine"]
        for agents in AGENTS
        if agents >= 3 and over_one[agents, "raw"] >= GAIN_MIN
    }
    least = min(shares.values())
    summary = ", ".join(f"{gain:.2f} at {agents}" for agents, gain in gains.items()) or "nowhere"
    print_verdict(
        reached=least >= SHARE_MIN and min(gains.values(), default=GAIN_MIN) >= GAIN_MIN,
        why=f"{least:.0%} to {max(shares.values()):.0%} of the bare generator (goal:"
        f" {SHARE_MIN:.0%}); over one agent, where the bare generator gains {GAIN_MIN}: {summary}"
        f" (goal: {GAIN_MIN}).",
    )
    print_conditions(started_s)


def _rates() -> dict[tuple[int, str], list[float]]:
    taken: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    network, tokenizer, *_ = mlx_lm.utils.load(str(find_model(DEMO_MODEL)))
    with DemoEngine(batch=max(AGENTS)) as engine:
        # Round 0 is the warm-up.
        for round_number in range(ROUNDS + 1):
            for agents in AGENTS:
                texts = [
                    f"Round {round_number} of {agents}. Tell me a long story about {topic}."
                    for topic in TOPICS[:agents]
                ]
                ways = {
                    "engine": lambda texts=texts: _engine_rate(engine, texts),
                    "raw": lambda texts=texts: _raw_rate(network, tokenizer, texts),
                }
                for way in sorted(ways, reverse=bool(round_number % 2)):
                    rate = ways[way]()
                    if round_number:
                        taken[agents, way].append(rate)
    return taken


def _engine_rate(engine: DemoEngine, texts: list[str]) -> float:
    started_s = time.perf_counter()
    handles = [
        engine.submit(engine.prepare([Message(role="user", content=text)], MAX_TOKENS))
        for text in texts
    ]
    tokens = sum(outcome_of(handle).usage.completion_tokens for handle in handles)
    return tokens / (time.perf_counter() - started_s)


def _raw_rate(network: Any, tokenizer: Any, texts: list[str]) -> float:
    bodies = [
        {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": MAX_TOKENS,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        for text in texts
    ]
    traces, cpu_s = run_batch(network, tokenizer, bodies)
    return figures_of(traces, cpu_s).tokens_per_s


if __name__ == "__main__":
    main()
