"""EXP-006: what does joining 8,000 known tokens cost?

``python -m bench.experiments.exp006 [--model DIR]``: the next turn of an agent continues its own
context; a second agent that has the same tokens, while the first answers, gets a copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from bench.report.section import log_to_stderr, print_conditions, print_table, print_verdict
from bench.runners import insert, make_runner
from domain.kv.spec import BLOCK_TOKENS
from domain.model.registry import ModelEntry
from tests.support.models.kv_sequences import random_tokens
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admitted, StepResult

ROUNDS: Final = 5
JOIN_MS_MAX: Final = 5.0
#: New tokens of a turn.
_TURN: Final = 8
#: Tokens of an answer; the context of one token alone is not kept.
_ANSWER: Final = 2
_LONG_ANSWER: Final = 64


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="semantic-demo", help="directory or hub id")
    parser.add_argument("--tokens", type=int, default=8000)
    given = parser.parse_args()
    log_to_stderr()
    started_s = time.monotonic()
    weights = load_weights(ModelEntry(name=given.model, source=given.model))
    bench, prompt = _Bench(make_runner(weights)), random_tokens(given.tokens, 0)
    began = time.monotonic()
    last = bench.insert(prompt, _ANSWER)
    bench.run_to_the_end()
    cold_s = time.monotonic() - began
    continued, copied = [], []
    for number in range(ROUNDS):
        prompt = [*prompt, *bench.answers[last.uid], *random_tokens(_TURN, number)]
        last, took_ms = bench.join_ms(prompt)
        continued.append(took_ms)
        # The context of the last turn answers, so that another agent needs a copy.
        prompt = [*prompt, *bench.answers[last.uid], *random_tokens(_TURN, -number - 1)]
        last = bench.begin(prompt)
        copied.append(bench.join_ms([*prompt, 1])[1])
    rows = [
        ("computed", f"{1000 * cold_s:,.0f}", "-"),
        ("next turn: the agent's own context", *_cells(continued)),
        ("another agent while the first answers: a copy", *_cells(copied)),
    ]
    print_table((f"{given.tokens:,} tokens", ">ms, median", ">ms, most"), rows)
    worst = sorted(continued)[ROUNDS // 2], sorted(copied)[ROUNDS // 2]
    print_verdict(
        reached=max(worst) < JOIN_MS_MAX,
        why=f"the next turn joins in {worst[0]:.1f} ms, a copy in {worst[1]:.1f} ms"
        f" (goal: less than {JOIN_MS_MAX:.0f} ms).",
    )
    print_conditions(started_s)
    mx.clear_streams()


def _cells(times_ms: Sequence[float]) -> tuple[str, str]:
    return f"{sorted(times_ms)[len(times_ms) // 2]:.1f}", f"{max(times_ms):.1f}"


class _Bench:
    """A runner, and the sequences that have not ended."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner
        self._open: set[int] = set()
        self.answers: dict[int, list[int]] = {}

    def insert(self, prompt: Sequence[int], tokens: int) -> Admitted:
        """Add a sequence."""
        admitted = insert(self._runner, prompt, tokens)
        self._open.add(admitted.uid)
        return admitted

    def step(self) -> StepResult:
        """Compute a step."""
        result = self._runner.step()
        for uid, token, _ in result.tokens:
            self.answers.setdefault(uid, []).append(token)
        self._open -= {uid for uid, _, finish in result.tokens if finish is not None}
        return result

    def run_to_the_end(self) -> None:
        """Compute until every sequence has ended."""
        while self._open:
            self.step()

    def begin(self, prompt: Sequence[int]) -> Admitted:
        """Add a sequence with a long answer, and return once it answers."""
        admitted = self.insert(prompt, _LONG_ANSWER)
        while not self.step().tokens:
            pass
        return admitted

    def join_ms(self, prompt: Sequence[int]) -> tuple[Admitted, float]:
        """Answer a prompt; return the milliseconds until its known tokens are in a row's caches."""
        begin = time.monotonic()
        admitted = self.insert(prompt, _ANSWER)
        known = admitted.cached_tokens
        assert known >= len(prompt) - BLOCK_TOKENS - _TURN, f"{known} tokens are known"
        joined_s = time.monotonic() - begin
        while admitted.uid not in self.answers:
            result = self.step()
            if admitted.uid in result.restored:
                joined_s = (result.restored_at or time.monotonic()) - begin
        self.run_to_the_end()
        return admitted, 1000 * joined_s


if __name__ == "__main__":
    main()
