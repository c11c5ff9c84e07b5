"""Load that lasts: an hour, realistic rates, memory, drift, and agents of different habits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from bench.soak.samples import Sample, Sampler
from bench.soak.verdict import WARM_UP
from bench.stress.agents import conversation
from bench.stress.client import Reply, at_once, question
from bench.stress.run import Run
from bench.stress.verdict import (
    Check,
    Outcome,
    answered,
    latencies,
    no_failure,
    percentiles,
)

#: Growth of resident memory after the warm-up that is no leak, in percent.
GROWTH_PERCENT_MAX: Final = 5.0
#: The last window may be this much slower than the first one after the warm-up.
DRIFT_MAX: Final = 1.2
#: Samples of a whole run, and the least pause between two.
SAMPLES: Final = 120
SAMPLE_S_MIN: Final = 2.0
#: Answers that a window needs to be compared.
WINDOW_MIN: Final = 5
_LONG_CONTEXT: Final = "At noon the clock of the station was wrong by three minutes. " * 60


async def hour(run: Run) -> Outcome:
    """Send 2.5 requests a second for an hour, and watch memory, errors and latency."""
    replies, samples = await _paced(run, workers=5, per_s=2.5, last_s=run.seconds(3600))
    checks = (*_errors(replies), _growth(samples), _drift(replies))
    return Outcome(checks=checks, head=_MEMORY_HEAD, rows=_memory_rows(samples))


async def per_minute(run: Run) -> Outcome:
    """Let five agents send two requests a minute each for ten minutes."""
    last_s = run.seconds(600)
    replies, _ = await _paced(run, workers=5, per_s=10 / 60, last_s=last_s)
    expected = max(1, round(last_s * 10 / 60))
    off = abs(len(replies) - expected) / expected
    return Outcome(
        checks=(
            *_errors(replies),
            Check(
                target="within 20 % of the requests that the rate makes",
                figure=f"{len(replies)} of {expected}",
                reached=off <= 0.2 or abs(len(replies) - expected) <= 5,
            ),
        )
    )


async def memory(run: Run) -> Outcome:
    """Send three requests a second for half an hour, and watch memory."""
    replies, samples = await _paced(run, workers=3, per_s=3.0, last_s=run.seconds(1800))
    checks = (*_errors(replies), _growth(samples))
    return Outcome(checks=checks, head=_MEMORY_HEAD, rows=_memory_rows(samples))


async def drift(run: Run) -> Outcome:
    """Let five clients work for ten minutes, and compare the first with the last minutes."""
    replies, _ = await _paced(run, workers=5, per_s=10.0, last_s=run.seconds(600))
    return Outcome(checks=(*_errors(replies), _drift(replies)))


async def conversations(run: Run) -> Outcome:
    """Let five agents of different habits talk for five minutes."""
    until_s = time.monotonic() + run.seconds(300)
    habits: Mapping[str, Callable[[str, int], Awaitable[Sequence[Reply]]]] = {
        "short questions, often": lambda name, turn: _short(run, name, turn),
        "long context, sometimes": lambda name, turn: _long(run, name, turn),
        "bursts of five": lambda name, turn: _burst(run, name, turn),
        "conversations, at intervals": lambda name, turn: _talk(run, name, turn, 3.0),
        "conversations, rarely": lambda name, turn: _talk(run, name, turn, 8.0),
    }

    async def live(number: int, habit: str) -> list[Reply]:
        replies: list[Reply] = []
        turn = 0
        while not replies or time.monotonic() < until_s:
            replies += await habits[habit](f"habit-{number}", turn)
            turn += 1
        return replies

    taken = await asyncio.gather(*(live(*one) for one in enumerate(habits)))
    replies = [reply for one in taken for reply in one]
    rows = []
    for habit, ours in zip(habits, taken, strict=True):
        prompt = sum(one.prompt_tokens for one in ours)
        cached = sum(one.cached_tokens for one in ours)
        share = f"{cached / prompt:.0%}" if prompt else "-"
        rows.append((habit, len(ours), share, *percentiles(latencies(ours))))
    return Outcome(
        checks=(
            no_failure(replies),
            answered(replies, 1.0),
            Check(
                target="every agent gets answers to the end",
                figure=f"{sum(any(r.is_answer for r in one[-1:]) for one in taken)} of 5",
                reached=all(one and one[-1].is_answer for one in taken),
            ),
        ),
        head=("agent", ">requests", ">reused", ">p50 ms", ">p95 ms", ">p99 ms"),
        rows=rows,
    )


async def _short(run: Run, name: str, turn: int) -> Sequence[Reply]:
    reply = await run.client.ask(question(f"{name} short {turn}"), 16, agent=name)
    await asyncio.sleep(0.5)
    return [reply]


async def _long(run: Run, name: str, turn: int) -> Sequence[Reply]:
    messages = question(f"{_LONG_CONTEXT}{name} long {turn}")
    reply = await run.client.ask(messages, 64, agent=name)
    await asyncio.sleep(5.0)
    return [reply]


async def _burst(run: Run, name: str, turn: int) -> Sequence[Reply]:
    replies = await at_once(
        5, lambda index: run.client.ask(question(f"{name} burst {turn} {index}"), 24, agent=name)
    )
    await asyncio.sleep(4.0)
    return replies


async def _talk(run: Run, name: str, turn: int, pause_s: float) -> Sequence[Reply]:
    replies = await conversation(run, f"{name}-{turn}", 3)
    await asyncio.sleep(pause_s)
    return replies


async def _paced(
    run: Run, *, workers: int, per_s: float, last_s: float
) -> tuple[list[Reply], list[Sample]]:
    """Let workers send at a rate in all, each one request at a time, for some seconds."""
    until_s = time.monotonic() + last_s
    pause_s = workers / per_s

    async def worker(number: int) -> list[Reply]:
        replies: list[Reply] = []
        # The workers begin at different times of the first pause.
        await asyncio.sleep(random.Random(number).random() * min(pause_s, last_s / 2))
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            name = f"sustained-{number} {len(replies)}"
            replies.append(await run.client.ask(question(name), 50, agent=f"worker-{number}"))
            rest_s = min(began_s + pause_s, until_s) - time.monotonic()
            await asyncio.sleep(max(0.0, rest_s))
        return replies

    sampler = Sampler(run.service, max(SAMPLE_S_MIN, last_s / SAMPLES))
    try:
        taken = await asyncio.gather(*map(worker, range(workers)))
    finally:
        samples = await asyncio.to_thread(sampler.close)
    return [reply for one in taken for reply in one], samples


def _errors(replies: Sequence[Reply]) -> tuple[Check, ...]:
    return no_failure(replies), answered(replies, 0.99)


_MEMORY_HEAD: Final = ("process", ">after the warm-up, MB", ">at the end, MB", ">growth")


def _growth(samples: Sequence[Sample]) -> Check:
    begin, end = _levels(samples, "all")
    percent = 100 * (end / begin - 1) if begin else float("inf")
    return Check(
        target=f"memory after the warm-up grows by < {GROWTH_PERCENT_MAX:g} %",
        figure=f"{percent:+.1f} %",
        reached=percent < GROWTH_PERCENT_MAX,
    )


def _memory_rows(samples: Sequence[Sample]) -> list[tuple[str, str, str, str]]:
    names = sorted({name for one in samples for name in one if name.endswith(" rss, MB")})
    rows = []
    for name in (*names, "all"):
        begin, end = _levels(samples, name)
        if begin:
            change = f"{100 * (end / begin - 1):+.1f} %"
            rows.append((name.removesuffix(" rss, MB"), f"{begin:.0f}", f"{end:.0f}", change))
    return rows


def _levels(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """Return a series just after the warm-up and at the end, each the mean of some samples."""
    values = [_total(one) if name == "all" else one.get(name, 0.0) for one in samples]
    values = [value for value in values if value]
    tenth = max(1, len(values) // 10)
    warm = int(WARM_UP * len(values))
    if not values:
        return 0.0, 0.0
    begin, end = values[warm : warm + tenth], values[-tenth:]
    return sum(begin) / len(begin), sum(end) / len(end)


def _total(sample: Sample) -> float:
    return sum(value for name, value in sample.items() if name.endswith(" rss, MB"))


def _drift(replies: Sequence[Reply]) -> Check:
    """Compare p95 of the first and the last sixth of the time after the warm-up."""
    done = [one for one in replies if one.is_answer]
    begin_s = min((one.at_s for one in done), default=0.0)
    end_s = max((one.at_s for one in done), default=0.0)
    warm_s = begin_s + WARM_UP * (end_s - begin_s)
    window_s = (end_s - warm_s) / 6
    early = latencies(one for one in done if warm_s <= one.at_s < warm_s + window_s)
    late = latencies(one for one in done if one.at_s >= end_s - window_s)
    enough = min(len(early), len(late)) >= WINDOW_MIN
    ratio = percentiles(late)[1] / percentiles(early)[1] if enough else float("inf")
    figure = f"{ratio:.2f}" if enough else "too few"
    return Check(
        target=f"p95 of the last over the first sixth ≤ {DRIFT_MAX:g}",
        figure=f"{figure} ({len(early)} and {len(late)} answers)",
        reached=ratio <= DRIFT_MAX,
        timed=True,
    )
