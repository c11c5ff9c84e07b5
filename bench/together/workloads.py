"""Requests that no two programs or streams share: of three kinds, and long conversations."""

from __future__ import annotations

import argparse
import inspect
import pydoc_data.topics
import random
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from bench.client import Message, StreamTrace, chat_body

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


QUESTIONS = (
    "What colour is the sky?",
    "How many legs does a dog have?",
    "What do you call a baby cat?",
)
ADJECTIVES = ("grey", "small", "old", "red", "quiet", "wooden", "broken", "new")
THINGS = ("boat", "lamp", "garden", "letter", "clock", "bridge", "train", "tower")
PLACES = ("harbour", "market", "school", "forest", "station", "river", "library", "field")


class Conversations:
    """Makes first turns of about the same length.

    Args:
        model: Directory with the ``tokenizer.json`` that counts tokens.
        tokens: Length of a first turn.
    """

    def __init__(self, model: Path, tokens: int) -> None:
        self._tokenizer = _tokenizer(model)
        self._tokens = tokens

    def begin(self, name: str) -> list[Message]:
        """Return a first turn; turns of different names differ from their first words on."""
        words = random.Random(name)
        lines = [f"Log {words.randrange(10**8)} of {name}."]
        length = self._length(lines[0])
        while length < self._tokens:
            line = (
                f"At {words.randrange(24)}:{words.randrange(60):02} the {words.choice(ADJECTIVES)}"
                f" {words.choice(THINGS)} near the {words.choice(PLACES)} was seen"
                f" {words.randrange(100)} times."
            )
            lines.append(line)
            length += self._length(line) + 1
        return [{"role": "user", "content": "\n".join([*lines, QUESTIONS[0]])}]

    def _length(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)


def next_turn(messages: list[Message], reply: StreamTrace) -> list[Message]:
    """Return the conversation with the answer and the next question."""
    question = QUESTIONS[(len(messages) + 1) // 2 % len(QUESTIONS)]
    return [
        *messages,
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": question},
    ]


@cache
def _tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))
