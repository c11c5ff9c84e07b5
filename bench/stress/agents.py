"""Several agents at once: rapid requests, isolation, latency and reuse."""

from __future__ import annotations

import asyncio
from typing import Final

from bench.stress.client import (
    Check,
    Message,
    Outcome,
    Reply,
    Run,
    answered,
    at_once,
    latencies,
    no_failure,
    percentiles,
    question,
    story,
    within,
)

AGENTS: Final = 10
REQUESTS: Final = 50
#: Keys of the agents that must not see each other's contexts.
KEYS: Final = tuple(f"stress-key-of-agent-{number}" for number in range(5))
#: Least share of prompt tokens, after the first turn, that are not computed.
HIT_RATE_MIN: Final = 0.8
#: More than a block, so that a context of another key could be reused if it were shared.
_SYSTEM: Final = "You help with a program. Answer in a few words, and read files first. " * 40


async def rapid(run: Run) -> Outcome:
    """Let ten agents send fifty requests each, one after another."""
    turns = run.count(REQUESTS)

    async def agent(number: int) -> list[Reply]:
        return [
            await run.client.ask(
                question(f"Agent {number} request {turn}"), 50, agent=f"agent-{number}"
            )
            for turn in range(turns)
        ]

    taken = await asyncio.gather(*map(agent, range(AGENTS)))
    replies = [reply for one in taken for reply in one]
    p50, p95, p99 = percentiles(latencies(replies)) or (0.0, 0.0, 0.0)
    return Outcome(
        checks=(
            Check(
                target=f"{AGENTS * turns} replies",
                figure=str(len(replies)),
                reached=len(replies) == AGENTS * turns,
            ),
            no_failure(replies),
            answered(replies, 0.9),
        ),
        head=("agents", ">requests", ">p50 ms", ">p95 ms", ">p99 ms"),
        rows=((AGENTS, len(replies), p50, p95, p99),),
    )


async def isolation(run: Run) -> Outcome:
    """Ask each agent alone, then all at once: equal answers, and no context of another key."""
    turns = run.count(10)
    texts = [f"Turn {turn}. Name a colour and an animal." for turn in range(turns)]

    async def ask(key: str, turn: int, way: str) -> Reply:
        messages = [{"role": "user", "content": texts[turn]}]
        # No answer has this text; it makes the request another one, which joins no earlier job.
        return await run.client.ask(
            messages, 24, agent=key, system=_SYSTEM, stop_sequences=[f"<asked {way}>"]
        )

    first = [await ask(key, 0, "alone") for key in KEYS]
    alone = [
        [reply, *[await ask(key, turn, "alone") for turn in range(1, turns)]]
        for key, reply in zip(KEYS, first, strict=True)
    ]
    pairs = [(key, turn) for turn in range(turns) for key in KEYS]
    together = await at_once(len(pairs), lambda index: ask(*pairs[index], "together"))
    found = dict(zip(pairs, together, strict=True))
    replies = [*[reply for one in alone for reply in one], *together]
    equal = sum(
        found[key, turn].text == alone[index][turn].text
        for index, key in enumerate(KEYS)
        for turn in range(turns)
    )
    foreign = [reply.cached_tokens for reply in first]
    own = sum(one.cached_tokens > 0 for one in together)
    return Outcome(
        checks=(
            no_failure(replies),
            Check(
                target="the first request of a key starts from no context of another key",
                figure=f"{sum(foreign)} cached tokens in {len(foreign)} first requests",
                reached=not any(foreign),
            ),
            Check(
                target="answers under load are those alone",
                figure=f"{equal} of {len(pairs)}",
                reached=equal == len(pairs),
            ),
            Check(
                target="later requests start from the key's own context",
                figure=f"{own} of {len(together)}",
                reached=own == len(together),
            ),
        )
    )


async def latency(run: Run) -> Outcome:
    """Send a hundred requests, twenty at once."""
    replies = await at_once(
        run.count(100), lambda index: run.client.ask(story(f"Latency {index}"), 50), clients=20
    )
    ms = latencies(replies)
    return Outcome(
        checks=(
            no_failure(replies),
            answered(replies, 1.0),
            within(ms, 0.95, 2000),
            within(ms, 0.99, 5000),
        ),
        head=("at once", ">requests", ">p50 ms", ">p95 ms", ">p99 ms"),
        rows=((20, len(replies), *percentiles(ms)),),
        note="20 streams of 50 tokens end within 2 s from 500 tokens/s in all on.",
    )


async def hits(run: Run) -> Outcome:
    """Let five agents hold conversations of ten turns, and sum what was not computed."""
    turns = run.count(10)

    async def agent(number: int) -> list[Reply]:
        return await conversation(run, f"hits-{number}", turns)

    taken = await asyncio.gather(*map(agent, range(len(KEYS))))
    replies = [reply for one in taken for reply in one]
    later = [reply for one in taken for reply in one[1:] if reply.is_answer]
    prompt = sum(one.prompt_tokens for one in later)
    share = sum(one.cached_tokens for one in later) / prompt if prompt else 0.0
    return Outcome(
        checks=(
            no_failure(replies),
            answered(replies, 0.9),
            Check(
                target=f"> {HIT_RATE_MIN:.0%} of the prompt tokens after a first turn are reused",
                figure=f"{share:.1%} of {prompt:,}",
                reached=share > HIT_RATE_MIN,
            ),
        )
    )


async def conversation(run: Run, agent: str, turns: int) -> list[Reply]:
    """Hold one conversation, each turn after the answer to the one before."""
    messages: list[Message] = []
    replies: list[Reply] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{agent} {turn}: What is in the sky?"})
        reply = await run.client.ask(messages, 32, agent=agent, system=_SYSTEM)
        replies.append(reply)
        if not reply.is_answer:
            break
        messages.append({"role": "assistant", "content": reply.text or "Nothing."})
    return replies
