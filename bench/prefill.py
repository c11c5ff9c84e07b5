"""How fast is a long prompt prefilled, compared with mlx-lm? A part of ``bench.serving``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.client import StreamTrace
from bench.comparison.conversation import Conversations

PROMPT_TOKENS = 2000
#: Its name in the table of the streams.
TITLE = f"prefill of {PROMPT_TOKENS:,} tokens"


def body(conversations: Conversations, round_number: int, model: str) -> dict[str, Any]:
    """Return a request for one token after a prompt that no server has cached."""
    return {
        "model": model,
        "messages": conversations.begin(f"prefill {round_number}"),
        "max_tokens": 1,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def tokens_per_s(trace: StreamTrace) -> float:
    """Return prompt tokens over the time to the first token."""
    return trace.prompt_tokens / (trace.tokens[0] - trace.sent)


def table(rounds: Mapping[str, Sequence[float]], yardstick: str) -> Iterator[str]:
    """Yield the lines of a Markdown table of medians over the rounds."""
    yield f"| {TITLE} | tok/s | of raw |"
    yield "|---|--:|--:|"
    of_raw = statistics.median(rounds[yardstick])
    for name, figures in rounds.items():
        median = statistics.median(figures)
        yield f"| {name} | {median:,.0f} | {median / of_raw:.0%} |"
