"""Tokens per second of one stream and of four at once, prefill of the short prompts included."""

from __future__ import annotations

import time

from bench.comparison.chat import Message
from bench.comparison.measurements.base import Measurement, Round, Row
from bench.comparison.server import Server

MAX_TOKENS = 200
TOPICS = ("a fox", "a boat", "the sea", "a clock", "the moon")


def _story(round_: Round, topic: str) -> list[Message]:
    return [
        {"role": "user", "content": f"{round_.name}. Tell me a long story about {topic}."},
    ]


def _tokens_per_s(server: Server, stories: list[list[Message]]) -> float:
    begin = time.perf_counter()
    replies = server.ask_together(stories, MAX_TOKENS)
    return sum(reply.completion_tokens for reply in replies) / (time.perf_counter() - begin)


def _run(server: Server, round_: Round) -> dict[str, float]:
    one, *four = (_story(round_, topic) for topic in TOPICS)
    return {"one_stream": _tokens_per_s(server, [one]), "four_streams": _tokens_per_s(server, four)}


STREAMS = Measurement(
    name="streams",
    rows=(
        Row(key="one_stream", title="one stream", form="{:.0f} tok/s"),
        Row(key="four_streams", title="four streams", form="{:.0f} tok/s"),
    ),
    run=_run,
)
