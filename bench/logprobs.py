"""What do log-probabilities cost the requests that want them, and all others?

``python -m bench.logprobs [--model semantic-demo] [--streams 1,8] [--steps 200] [--rounds 5]
[--vocabulary 151936]``. Drives the runner without threads or text. Batches take turns. The baseline
is a batch whose sampler has no log-probabilities; a cost is the median over the rounds of the
difference to it, in processor time for each step, which other programs on the machine disturb less
than the clock. The second table draws from random rows of a vocabulary as large as real ones.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import mlx.core as mx

from domain.values import Sampling
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.mlx.sampling.logprobs import LogprobRows
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow
from worker.engine.ports import Admission, TokenLikelihood

_PROMPT = tuple(range(100, 164))
_WARM_STEPS = 20


class _Nothing(LogprobRows):
    """A sampler's log-probability rows that do nothing; the baseline."""

    def note(self, uids: Sequence[int], logprobs: mx.array, tokens: mx.array) -> None:
        del uids, logprobs, tokens

    def next(self, uid: int) -> TokenLikelihood | None:
        del uid
        return None

    def first(self, uid: int) -> TokenLikelihood | None:
        del uid
        return None


class _Runner(BatchRunner):
    """A runner that can drop its log-probabilities at its next ``reset``."""

    is_ignorant = False

    def reset(self) -> None:
        super().reset()
        if self.is_ignorant:
            self._sampler.logprob_rows = _Nothing()


@dataclass(frozen=True, slots=True)
class _Form:
    """A kind of batch: which of its sequences want log-probabilities."""

    name: str
    asked: Callable[[int], int | None] = lambda _: None
    is_ignorant: bool = False


FORMS = (
    _Form("before", is_ignorant=True),
    _Form("none"),
    _Form("one asks for 5", lambda row: None if row else 5),
    _Form("all ask, 0", lambda _: 0),
    _Form("all ask for 5", lambda _: 5),
    _Form("all ask for 20", lambda _: 20),
)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="semantic-demo")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    options = parser.parse_args()
    print(f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, {options.model}\n")
    runner = _Runner(
        load_weights=lambda: replace(
            load_weights(ModelSource(id=options.model)), end_ids=frozenset()
        ),
        prefill_step_tokens=256,
    )
    runner.load()
    streams = [int(one) for one in options.streams.split(",")]
    print("A whole step, CPU µs:\n")
    _print(streams, options.rounds, lambda form, rows: _step_us(runner, form, rows, options.steps))
    print(f"\nA draw from {options.vocabulary:,} tokens in bfloat16, CPU µs:\n")
    vocabulary, draws = options.vocabulary, max(1, options.steps // 5)
    _print(streams, options.rounds, lambda form, rows: _draw_us(form, rows, vocabulary, draws))


def _print(streams: Sequence[int], rounds: int, measure: Callable[[_Form, int], float]) -> None:
    print(f"| streams | {' | '.join(form.name for form in FORMS)} |")
    print("|--:" * (1 + len(FORMS)) + "|")
    for rows in streams:
        taken = [[measure(form, rows) for form in FORMS] for _ in range(rounds)]
        before = [one[0] for one in taken]
        cells = [f"{statistics.median(before):.0f}"]
        for place in range(1, len(FORMS)):
            more = [one[place] - one[0] for one in taken]
            low, high = min(more), max(more)
            cells.append(f"{statistics.median(more):+.0f} ({low:+.0f} … {high:+.0f})")
        print(f"| {rows} | {' | '.join(cells)} |", flush=True)


def _step_us(runner: _Runner, form: _Form, rows: int, steps: int) -> float:
    """Return the processor time of one step of a batch."""
    runner.is_ignorant = form.is_ignorant
    runner.reset()
    for row in range(rows):
        runner.insert(
            Admission(
                tokens=_PROMPT,
                first_index=0,
                max_new_tokens=1 << 20,
                sampling=Sampling(temperature=0.8, seed=row),
                logprobs=form.asked(row),
            )
        )
    for _ in range(_WARM_STEPS + rows):
        runner.step()
    return _timed_us(runner.step, steps)


def _draw_us(form: _Form, rows: int, vocabulary: int, draws: int) -> float:
    """Return the processor time of one draw and its log-probabilities."""
    uids = list(range(rows))
    sampler = BatchSampler(lambda _: uids)
    if form.is_ignorant:
        sampler.logprob_rows = _Nothing()
    for uid in uids:
        sampler.add(uid, SamplerRow(Sampling(temperature=0), 0, logprobs=form.asked(uid)))
    logits = (4 * mx.random.normal((rows, vocabulary), key=mx.random.key(3))).astype(mx.bfloat16)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(logprobs)

    def draw() -> None:
        mx.eval(sampler(logprobs))
        for uid in uids:
            sampler.logprob_rows.next(uid)

    draw()
    return _timed_us(draw, draws)


def _timed_us(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return 1e6 * (time.process_time() - began) / times


if __name__ == "__main__":
    main()
