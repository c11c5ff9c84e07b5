"""Requests of three kinds, made of the standard library: no two of a run have one text."""

from __future__ import annotations

import argparse
import inspect
import pydoc_data.topics
import random
import re
from typing import Any, Final

from bench.client import Message, chat_body

#: ``prose`` and ``code`` ask for new text, ``edits`` for the text of the prompt with a change.
KINDS: Final = ("prose", "code", "edits")
#: Characters of the text in a prompt; some 4 are a token.
_CHARS: Final = 360
#: An answer that repeats its prompt must not end before its limit of tokens.
_CHARS_PER_TOKEN: Final = 5
_PROSE: Final = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
#: Whole sentences without code, which a small model repeats more faithfully than fragments.
_SENTENCES: Final = tuple(re.findall(r"(?<=[.] )[A-Z][a-z]+(?: [A-Za-z,-]+){8,25}[.](?= )", _PROSE))
_CODE: Final = inspect.getsource(argparse)


def make_bodies(
    kind: str, *, model: str, streams: int, tokens: int, name: str
) -> list[dict[str, Any]]:
    """Return one request for each stream.

    Args:
        tokens: Most tokens of an answer.
        name: The same name gives the same requests.
    """
    words = random.Random(f"{kind} {streams} {tokens} {name}")
    return [chat_body(model, _asked(kind, words, tokens), tokens) for _ in range(streams)]


def prompt_of(body: dict[str, Any]) -> str:
    """Return all texts of a request."""
    return "\n".join(message["content"] for message in body["messages"])


def _asked(kind: str, words: random.Random, tokens: int) -> list[Message]:
    number = words.randrange(10**6)
    if kind == "edits":
        return _edits(number, words, max(_CHARS, _CHARS_PER_TOKEN * tokens))
    asked = f"Tell me a long story, number {number}, about this: {_cut(_PROSE, words, _CHARS)}"
    if kind == "code":
        code = _cut(_CODE, words, _CHARS)
        asked = f"Write a long Python module, number {number}, that begins so:\n\n{code}"
    return [{"role": "user", "content": asked}]


def _edits(number: int, words: random.Random, chars: int) -> list[Message]:
    """Return a conversation that has shown a text twice and asks for it again, as agents do."""
    text = f"Text {number}."
    while len(text) < chars:
        text += f" {words.choice(_SENTENCES)}"
    again = {"role": "user", "content": "Show me the text again."}
    shown = {"role": "assistant", "content": text}
    return [{"role": "user", "content": "Show me the text."}, shown, again, shown, again]


def _cut(text: str, words: random.Random, length: int) -> str:
    start = words.randrange(len(text) - length)
    return text[start : start + length]


def copied_share(prompt: str, answer: str, width: int = 24) -> float:
    """Return the share of an answer's places where as many characters also stand in its prompt."""
    places = range(len(answer) - width + 1)
    if not places:
        return 0.0
    return sum(answer[place : place + width] in prompt for place in places) / len(places)
