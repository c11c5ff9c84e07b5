"""More requests than the service has room for: it refuses some, fails none, and recovers."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

from bench.stress.client import (
    Check,
    Outcome,
    Reply,
    Run,
    alive,
    answered,
    at_once,
    latencies,
    no_failure,
    question,
    refused_by,
    story,
    well_formed_refusals,
    within,
)

CONCURRENT: Final = 150
#: Requests that may wait, and that run, in that case.
QUEUE_LIMIT: Final = 100
BATCH: Final = 8
#: Clients of the ramp, and the seconds in which it rises.
RAMP: Final = (10, 40, 70, 100)
RAMP_S: Final = 30.0
#: Further seconds in which the memory may become full.
PATIENCE_S: Final = 120.0
#: Requests a second, for so many seconds.
STEADY_PER_S: Final = 20.0
STEADY_S: Final = 60.0
RECOVERY_PAUSE_S: Final = 10.0
#: A text that takes room in memory.
_LONG: Final = " The harbour log says that a grey boat was seen near the bridge." * 30


async def concurrent(run: Run) -> Outcome:
    """Send 150 requests at once."""
    number = run.count(CONCURRENT)
    replies = await at_once(
        number, lambda index: run.client.ask(question(f"Concurrent {index}"), 50)
    )
    lost = sum(one.status == 0 for one in replies)
    return Outcome(
        checks=(
            Check(
                target="every request gets a reply",
                figure=f"{number - lost} of {number}",
                reached=not lost,
            ),
            no_failure(replies),
            answered(replies, 0.5),
            well_formed_refusals(replies, required=False),
            *([refused_by(replies, "queue")] if number > QUEUE_LIMIT + BATCH else []),
        )
    )


async def full(run: Run) -> Outcome:
    """Raise the number of clients from 10 to 100 against a small memory."""
    replies: list[Reply] = []
    step_s = run.seconds(RAMP_S) / len(RAMP)

    def goes_on() -> bool:
        # A machine that stalls may need longer until the first one has waited for memory.
        now_s = time.monotonic()
        is_refused = any("memory is full" in one.message for one in replies)
        return now_s < until_s or (not is_refused and now_s < until_s + PATIENCE_S)

    async def client(number: int) -> None:
        turn = 0
        while goes_on():
            reply = await run.client.ask(story(f"Full {number} {turn}"), 60)
            replies.append(reply)
            turn += 1
            # A client that honours Retry-After to the second would never find the service full.
            await asyncio.sleep(0.1 if reply.is_answer else 0.5)

    began_s = time.monotonic()
    until_s = began_s + step_s * len(RAMP)
    tasks: list[asyncio.Task[None]] = []
    for level, clients in enumerate(RAMP):
        while len(tasks) < run.count(clients):
            tasks.append(asyncio.create_task(client(len(tasks))))
        await asyncio.sleep(max(0.0, began_s + (level + 1) * step_s - time.monotonic()))
    await asyncio.gather(*tasks)
    after = await run.client.ask(question("After the full load"), 20)
    return Outcome(
        checks=(
            well_formed_refusals(replies, required=True),
            refused_by(replies, "memory"),
            no_failure(replies),
            Check(
                target="answers while it is full",
                figure=str(sum(one.is_answer for one in replies)),
                reached=any(one.is_answer for one in replies),
            ),
            Check(
                target="an answer at once afterwards",
                figure=str(after.status),
                reached=after.is_answer,
            ),
        )
    )


async def steady(run: Run) -> Outcome:
    """Offer 20 requests a second for a minute, whether or not earlier ones were answered."""
    states: list[bool] = []
    replies: list[asyncio.Task[Reply]] = []
    began_s, last_s = time.monotonic(), run.seconds(STEADY_S)
    for number in range(int(last_s * STEADY_PER_S)):
        messages = question(f"Steady {number}")
        replies.append(asyncio.create_task(run.client.ask(messages, 50)))
        if number % int(STEADY_PER_S) == 0:
            states.append(await run.client.is_alive())
        await asyncio.sleep(max(0.0, began_s + (number + 1) / STEADY_PER_S - time.monotonic()))
    taken = list(await asyncio.gather(*replies))
    states.append(await run.client.is_alive())
    return Outcome(
        checks=(
            no_failure(taken),
            alive(states=states, path="/health/live"),
            well_formed_refusals(taken, required=False),
            answered(taken, 0.5),
        )
    )


async def recovery(run: Run) -> Outcome:
    """Send five requests before and ten seconds after fifty at once."""

    async def five(name: str) -> list[Reply]:
        return await at_once(5, lambda index: run.client.ask(question(f"{name} {index}"), 50))

    await five("Warm up")
    before = await five("Before")
    high = await at_once(
        run.count(50), lambda index: run.client.ask(question(f"High {index}{_LONG}"), 100)
    )
    await asyncio.sleep(run.seconds(RECOVERY_PAUSE_S))
    after = await five("After")
    ready = await run.client.is_alive("/health/ready")
    times = [statistics.median(latencies(one) or [float("inf")]) for one in (before, after)]
    ratio = times[1] / times[0]
    return Outcome(
        checks=(
            no_failure([*before, *high, *after]),
            answered(after, 0.8),
            alive(states=[ready], path="/health/ready"),
            within(latencies(after), 0.95, 5000),
            Check(
                target="median at most 1.5 of the one before",
                figure=f"{ratio:.2f}",
                reached=ratio <= 1.5,
                timed=True,
            ),
        )
    )
