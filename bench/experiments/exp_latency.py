"""EXP-latency: what does the batch window cost and gain?

``python -m bench.experiments.exp_latency``

Rounds of 1, 4 and 8 requests arrive at the demo model within ``--spread`` milliseconds, at one
batch window after the other. The time to the first token counts from the arrival of each request;
the rate counts all tokens of a round from its first arrival to its last token.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.experiments.demo_engine import DemoEngine, outcome_of
from bench.experiments.report import print_conditions, print_table
from domain.chat.generation import PreparedPrompt
from domain.chat.ports import GenerationHandle
from domain.chat.request import Message

WINDOWS_MS = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
ARRIVALS = (1, 4, 8)


@dataclass(slots=True)
class Figures:
    """What the rounds of one window and one number of arrivals showed."""

    first_token_ms: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)

    def row(self, window_ms: float, arrivals: int) -> tuple[str, ...]:
        """Return a row of the table."""
        worst = max(self.first_token_ms)
        return (
            f"{window_ms:g}",
            str(arrivals),
            f"{statistics.median(self.first_token_ms):.1f}",
            f"{worst:.1f}",
            f"{statistics.median(self.tokens_per_s):.0f}",
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each row")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--spread", type=float, default=10.0, help="milliseconds between the first"
                        " and the last arrival of a round")  # fmt: skip
    parser.add_argument("--windows", type=float, nargs="+", default=WINDOWS_MS, help="milliseconds")
    given = parser.parse_args()
    started_s = time.monotonic()
    header = ("window, ms", ">arrivals", ">first token, median ms", ">worst ms", ">tokens/s")
    print_table(
        header, _rows(given.windows, given.rounds, given.tokens, spread_s=given.spread / 1000)
    )
    print_conditions(started_s)


def _rows(
    windows_ms: Sequence[float], rounds: int, tokens: int, *, spread_s: float
) -> Iterator[tuple[str, ...]]:
    rng = random.Random(12)
    for window_ms in windows_ms:
        with DemoEngine(batch=max(ARRIVALS), batch_window_ms=window_ms) as engine:
            _round(engine, 1, tokens, spread_s=0.0, rng=rng)  # compiles the kernels
            for arrivals in ARRIVALS:
                figures = Figures()
                for _ in range(rounds):
                    first_token_ms, rate = _round(
                        engine, arrivals, tokens, spread_s=spread_s, rng=rng
                    )
                    figures.first_token_ms += first_token_ms
                    figures.tokens_per_s.append(rate)
                yield figures.row(window_ms, arrivals)


def _round(
    engine: DemoEngine, arrivals: int, tokens: int, *, spread_s: float, rng: random.Random
) -> tuple[list[float], float]:
    """Return the times to the first token in milliseconds, and the tokens per second."""
    prompts = [_prompt(engine, tokens, rng) for _ in range(arrivals)]
    delays = sorted(rng.uniform(0, spread_s) for _ in prompts[1:])
    begun_s = time.monotonic()
    handles: list[GenerationHandle] = []
    for prompt, delay_s in zip(prompts, [0.0, *delays], strict=True):
        time.sleep(max(0.0, begun_s + delay_s - time.monotonic()))
        handles.append(engine.submit(prompt))
    outcomes = [outcome_of(handle) for handle in handles]
    took_s = time.monotonic() - begun_s
    total = sum(len(outcome.token_ids) for outcome in outcomes)
    return [outcome.timings.first_token_ms for outcome in outcomes], total / took_s


def _prompt(engine: DemoEngine, tokens: int, rng: random.Random) -> PreparedPrompt:
    # No two prompts share more than their first words, so that each is read anew.
    words = " ".join(rng.choice(("red", "green", "blue", "white")) for _ in range(30))
    text = f"{rng.random()}: tell me a story with {words}."
    return engine.prepare([Message(role="user", content=text)], tokens)


if __name__ == "__main__":
    main()
