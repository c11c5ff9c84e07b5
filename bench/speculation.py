"""What drafts win and cost in a network with recurrent states: ``python -m bench.speculation``.

    python -m bench.speculation [--rounds N] [--tokens N] [--head SHARE]

A random network of Qwen3.5's kind computes each pass, and the tokens that are drawn are those of a
text: a copy of the prompt with an edit in about twenty tokens, or prose in which phrases come back.
Sequences with and without drafts take turns every eight steps in one process. CPU time counts,
that of all threads, so that other processes change little. With ``--head`` a random head of the
family drafts where the text has no guess: each draft is computed, and its tokens are those of the
text in that share of all cases.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models import qwen3_5

from bench.report.section import print_conditions, table_lines
from tests.support.models.tiny_architectures import random_network
from tests.support.models.tiny_heads import random_head
from worker.engine.mlx.cpu import use_openblas
from worker.engine.mlx.drafting.pass_times import PassTimes
from worker.engine.mlx.drafting.speculation import (
    Drafter,
    DrafterSource,
    SpeculatedRow,
    Speculation,
)
from worker.engine.mlx.model.draft_head import draft_head, warmed
from worker.engine.mlx.rows.output_head import find_output_head
from worker.engine.mlx.rows.ragged_states import RowSupport, find_row_support
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences

_VOCABULARY: Final = 4096
_SHAPE: Final = {
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
    }
}
_TURN_STEPS: Final = 8
_ROOM: Final = 8

#: A prompt and its answer.
Text = tuple[list[int], list[int]]


def prose(seed: int, tokens: int) -> Text:
    """Return a text in which phrases come back, and often go on otherwise."""
    rng = random.Random(seed)
    text = [rng.randrange(_VOCABULARY) for _ in range(110)]
    while len(text) < 110 + tokens:
        if rng.random() < 0.05:
            start = rng.randrange(len(text) - 8)
            text += text[start : start + rng.randrange(3, 8)]
        text.append(rng.randrange(_VOCABULARY))
    return text[:110], text[110 : 110 + tokens]


def edit(seed: int, tokens: int) -> Text:
    """Return a text and a copy of it with an edit in about twenty tokens."""
    rng = random.Random(seed)
    given = [rng.randrange(_VOCABULARY) for _ in range(tokens)]
    return given, [one if rng.random() > 0.05 else rng.randrange(_VOCABULARY) for one in given]


@dataclass(frozen=True, slots=True)
class Bench:
    """A network, and the head that drafts for it.

    Attributes:
        share: Of the tokens of the head that are right.
    """

    network: Any
    support: RowSupport
    draft: DrafterSource | None
    share: float


class _Scripted:
    """A drafter that computes its drafts, and returns others."""

    def __init__(
        self, inner: Drafter, right: Callable[[SpeculatedRow, list[int]], list[int]]
    ) -> None:
        self._inner, self._right = inner, right
        self.observe, self.drop = inner.observe, inner.drop

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        """Return drafts of which some are right."""
        drafts = self._inner.propose(rows, drawn, count)
        return [self._right(row, draft) for row, draft in zip(rows, drafts, strict=True)]


class Side:
    """Sequences whose drawn tokens are given.

    Attributes:
        cpu_s: Seconds of all threads in decode steps.
    """

    def __init__(self, bench: Bench, texts: Sequence[Text], *, drafts: bool) -> None:
        self.cpu_s, self.drafted, self.accepted = 0.0, 0, 0
        self._bench, self._rng = bench, random.Random(1)
        self._drawn: dict[int, int] = {}
        self._answers: dict[int, list[int]] = {}
        self._left: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        speculation = Speculation(
            lambda uid, _: min(_ROOM, self._left[uid] - 1),
            self._take_back,
            frozenset(),
            self._count,
            PassTimes(time.process_time),
            None if bench.draft is None else _Scripted(bench.draft.new_drafter(), self._right),
        )
        self._sequences = RunningSequences(
            bench.network,
            self._draw,
            lambda _: 0,
            support=bench.support,
            speculation=speculation if drafts else None,
            head=find_output_head(bench.network),
        )
        for prompt, answer in texts:
            uid = self._sequences.insert(JoinRequest(prompt=prompt))
            self._answers[uid], self._left[uid], self._drawn[uid] = answer, len(answer), 0
            self._prompts[uid] = len(prompt)
        while self._sequences.is_prefilling:
            self._sequences.prefill(512)
            self._sequences.start_decoding()

    @property
    def is_over(self) -> bool:
        """Whether all answers are drawn."""
        return not self._left

    def steps(self) -> None:
        """Run some decode steps."""
        started = time.process_time()
        for _ in range(_TURN_STEPS):
            for uid, _ in self._sequences.decode():
                self._left[uid] -= 1
            ended = {uid for uid, left in self._left.items() if left <= 0}
            self._sequences.remove(ended)
            for uid in ended:
                del self._left[uid]
        self.cpu_s += time.process_time() - started

    def _draw(self, logits: mx.array, _: Any) -> mx.array:
        drawn = []
        for uid in self._sequences.sampled:
            answer, at = self._answers[uid], self._drawn[uid]
            drawn.append(answer[at] if at < len(answer) else 0)
            self._drawn[uid] = at + 1
        # The logits are computed, and do not choose.
        return mx.array(drawn) + 0 * mx.argmax(logits, axis=-1).astype(mx.int32)

    def _right(self, row: SpeculatedRow, draft: list[int]) -> list[int]:
        """Return a draft whose tokens are those of the text, as often as the head is right."""
        answer = self._answers[row.uid]
        first = len(row.tokens) - self._prompts[row.uid] + 1
        known = answer[first : first + len(draft)] + draft[max(0, len(answer) - first) :]
        is_right = [self._rng.random() < self._bench.share for _ in known]
        return [
            one if right else (one + 1) % _VOCABULARY
            for one, right in zip(known, is_right, strict=True)
        ]

    def _take_back(self, uid: int, draws: int) -> None:
        self._drawn[uid] -= draws

    def _count(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted


@dataclass(frozen=True, slots=True)
class Result:
    """CPU seconds without drafts over those with drafts, and the drafts."""

    ratio: float
    drafted: int
    accepted: int


def compare(bench: Bench, texts: Sequence[Text]) -> Result:
    """Decode the same answers with and without drafts, in turn."""
    sides = [Side(bench, texts, drafts=drafts) for drafts in (False, True)]
    while not all(side.is_over for side in sides):
        for side in sides:
            if not side.is_over:
                side.steps()
    plain, drafting = sides
    return Result(plain.cpu_s / drafting.cpu_s, drafting.drafted, drafting.accepted)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.speculation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--head", type=float, default=0.0, metavar="SHARE")
    given = parser.parse_args()
    started_s = time.monotonic()
    use_openblas()
    network = random_network(qwen3_5, _SHAPE)(mx.float32)
    support = find_row_support(network)
    draft = warmed(network, draft_head(network, random_head(network))) if given.head else None
    bench = Bench(network, support, draft, given.head)
    workloads: dict[str, Callable[[int, int], Text]] = {"copies with edits": edit, "prose": prose}
    rows = []
    for name, make in workloads.items():
        for streams in (1, 4, 8):
            found = [
                compare(
                    bench,
                    [make(100 * number + seed, given.tokens) for seed in range(streams)],
                )
                for number in range(given.rounds)
            ]
            ratios = [one.ratio for one in found]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            drafted, accepted = sum(o.drafted for o in found), sum(o.accepted for o in found)
            rows.append((name, streams, spread, drafted, accepted))
            print(*rows[-1], flush=True)
    print_conditions(started_s)
    header = ("workload", "streams", "CPU time without over with drafts", "drafted", "accepted")
    print("\n".join(table_lines(header, rows)))


if __name__ == "__main__":
    main()
