"""Load that lasts: an hour, realistic rates, memory, drift, and agents of different habits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from bench.soak.samples import Sample, Sampler
from bench.soak.verdict import DRIFT_MAX, GROWTH_PER_HOUR_MAX, drift_of, trends_of
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

#: Samples of a whole run, and the least pause between two.
SAMPLES: Final = 120
SAMPLE_S_MIN: Final = 2.0
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


_MEMORY_HEAD: Final = ("process", ">MB after the warm-up", ">at the end", ">an hour")


def _growth(samples: Sequence[Sample]) -> Check:
    grown = [name for name, trend in trends_of(samples).items() if trend.grows]
    return Check(
        target=f"nothing grows by more than {GROWTH_PER_HOUR_MAX:.0%} an hour and its noise",
        figure=", ".join(grown) or "none",
        reached=not grown,
    )


def _memory_rows(samples: Sequence[Sample]) -> list[tuple[str, str, str, str]]:
    return [
        (
            name.removesuffix(" rss, MB"),
            f"{trend.level:.0f}",
            f"{trend.last:.0f}",
            f"{trend.percent_per_hour:+.1f} %",
        )
        for name, trend in trends_of(samples).items()
        if name.endswith(" rss, MB")
    ]


def _drift(replies: Sequence[Reply]) -> Check:
    """Compare the last with the first third of the time after the warm-up."""
    done = sorted((one.at_s, one.ms) for one in replies if one.is_answer)
    ratio = drift_of([(at_s - done[0][0], ms) for at_s, ms in done])
    return Check(
        target=f"last over first third of the latencies ≤ {DRIFT_MAX:g}",
        figure="too few answers" if ratio is None else f"{ratio:.2f}",
        reached=ratio is not None and ratio <= DRIFT_MAX,
        timed=True,
    )
