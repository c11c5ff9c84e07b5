"""Load that lasts: an hour, realistic rates, memory and drift."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

from bench.soak.samples import Sample, Sampler
from bench.soak.verdict import (
    DRIFT_MAX,
    GROWTH_PER_HOUR_MAX,
    TREND_HEAD,
    drift_of,
    trend_rows,
    trends_of,
)
from bench.stress.client import Check, Outcome, Reply, Run, answered, no_failure, question

#: Samples of a whole run, and the least pause between two.
SAMPLES: Final = 120
SAMPLE_S_MIN: Final = 2.0


async def hour(run: Run) -> Outcome:
    """Send 2.5 requests a second for an hour, and watch memory, errors and latency."""
    replies, samples = await _paced(run, workers=5, per_s=2.5, last_s=run.seconds(3600))
    return _growing([*_errors(replies), _drift(replies)], samples)


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
    return _growing(_errors(replies), samples)


async def drift(run: Run) -> Outcome:
    """Let five clients work for ten minutes, and compare the first with the last minutes."""
    replies, _ = await _paced(run, workers=5, per_s=10.0, last_s=run.seconds(600))
    return Outcome(checks=(*_errors(replies), _drift(replies)))


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


def _growing(checks: Sequence[Check], samples: Sequence[Sample]) -> Outcome:
    """Return the checks, whether anything grows, and the table of trends."""
    trends = trends_of(samples)
    grown = [name for name, trend in trends.items() if trend.grows]
    growth = Check(
        target=f"nothing grows by more than {GROWTH_PER_HOUR_MAX:.0%} an hour and its noise",
        figure=", ".join(grown) or "none",
        reached=not grown,
    )
    return Outcome(checks=(*checks, growth), head=TREND_HEAD, rows=trend_rows(trends))


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
