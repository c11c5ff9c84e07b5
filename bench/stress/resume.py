"""How long does the next turn of a conversation take, from memory and after a restart?"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench.client import Message, StreamTrace, chat_body, stream_together
from bench.comparison.conversation import Conversations, next_turn
from bench.demo_model.render import MODEL_DIR
from bench.stress.client import MODEL
from bench.stress.run import Run
from bench.stress.verdict import Check, Outcome

#: Lengths of the conversations, in tokens.
LENGTHS: Final = (2048, 4096, 8192, 16384)
MAX_TOKENS: Final = 16
#: Of each length.
CONVERSATIONS: Final = 3
#: Seconds for the blocks of an answer to reach the disk.
SAVED_WITHIN_S: Final = 60.0
#: Least gain over a cold prompt; a resumed turn reads one question and not the conversation.
GAIN_MIN: Final = 5.0
#: Least share of the conversation that is not computed again.
REUSED_MIN: Final = 0.9


async def resume(run: Run) -> Outcome:
    """Ask at 2, 4, 8 and 16 thousand tokens: cold, the next turn, and the one after a restart."""
    rows = [await asyncio.to_thread(_at, run, length) for length in _lengths(run)]
    worst = {name: min(row[name] for row in rows) for name in ("memory", "disk")}
    reused = min(row["reused"] for row in rows)
    return Outcome(
        checks=(
            Check(
                target=f"≥ {REUSED_MIN:.0%} of the tokens are not computed again",
                figure=f"{reused:.1%} at least",
                reached=reused >= REUSED_MIN,
            ),
            *(
                Check(
                    target=f"cold over from {name} ≥ {GAIN_MIN:g}",
                    figure=f"{gain:.0f} at least",
                    reached=gain >= GAIN_MIN,
                    timed=True,
                )
                for name, gain in worst.items()
            ),
        ),
        head=(
            *(">tokens", ">cold ms", ">next turn ms", ">after a restart ms"),
            *(">cold over next turn", ">cold over restart", ">reused after the restart"),
        ),
        rows=[
            (
                *(f"{row[name]:,.0f}" for name in ("tokens", "cold_ms", "memory_ms", "disk_ms")),
                *(f"{row[name]:.0f}" for name in ("memory", "disk")),
                f"{row['reused']:.1%}",
            )
            for row in rows
        ],
    )


def _lengths(run: Run) -> Sequence[int]:
    return LENGTHS[: max(1, round(len(LENGTHS) * run.scale))]


def _at(run: Run, length: int) -> dict[str, float]:
    """Return milliseconds to the first text, and the gains, for one length: medians."""
    names = [f"resume {length} {number}" for number in range(CONVERSATIONS)]
    turns = [Conversations(MODEL_DIR, length).begin(name) for name in names]
    cold = [_ask(run, messages) for messages in turns]
    turns = [next_turn(*pair) for pair in zip(turns, cold, strict=True)]
    warm = [_ask(run, messages) for messages in turns]
    turns = [next_turn(*pair) for pair in zip(turns, warm, strict=True)]
    _wait_saved(run)
    run.service.stop()
    run.service.start()
    _ask(run, [{"role": "user", "content": f"Are you there? {length}"}])  # connections, first step
    resumed = [_ask(run, messages) for messages in turns]
    cold_s, warm_s, resumed_s = (
        statistics.median(one.first_s for one in replies) for replies in (cold, warm, resumed)
    )
    return {
        "tokens": cold[0].prompt_tokens,
        "cold_ms": 1000 * cold_s,
        "memory_ms": 1000 * warm_s,
        "disk_ms": 1000 * resumed_s,
        "memory": cold_s / warm_s,
        "disk": cold_s / resumed_s,
        "reused": min(one.cached_tokens / one.prompt_tokens for one in resumed),
    }


def _ask(run: Run, messages: Sequence[Message]) -> StreamTrace:
    body = chat_body(MODEL, messages, MAX_TOKENS)
    return stream_together(run.service.base_url, [body])[0]


def _wait_saved(run: Run) -> None:
    """Wait until the disk cache has stopped to grow."""
    cache = run.service.data_dir / "cache"
    deadline = time.monotonic() + SAVED_WITHIN_S
    before = -1
    while time.monotonic() < deadline:
        size = sum(1 for one in cache.rglob("*") if one.is_file())
        if size == before:
            return
        before = size
        time.sleep(2.0)
