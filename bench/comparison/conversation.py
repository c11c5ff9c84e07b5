"""Long prompts that are the same for every server and share no prefix with each other."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from bench.client import Message, StreamTrace

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
