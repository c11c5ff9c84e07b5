"""Keeps the marks of a chat template apart from the same characters in a caller's text.

A tokenizer reads the characters of an added token (``<|im_start|>``, ``<tool_call>``) as that token
wherever they occur. In the text of a user or of a tool they would forge a turn of another role. So
each of them is broken before the template is applied: a nonce goes between its first character and
the rest. In the rendered prompt the text is cut at the nonce and its pieces are encoded one by one,
so the model reads the same characters as plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from domain.chat.request import Message
from worker.engine.mlx.prompt.segment_tokenizer import longest_of

#: Characters of a mark that are compared; a longer one is recognised by its beginning.
_COMPARED_CHARS_MAX: Final = 200
_NONCE_BYTES: Final = 16


class MarkBreaker:
    """Breaks marks in texts, and encodes prompts with broken marks. For many threads at once.

    A mark of one character, or of white space only, is left whole: it has no role, and tokenizers
    have such tokens for indentation.

    Args:
        marks: The texts of all added tokens, whether or not the tokenizer calls them special.
    """

    def __init__(self, marks: Collection[str]) -> None:
        compared = {mark[:_COMPARED_CHARS_MAX] for mark in marks if mark.strip()}
        self._marks = frozenset(mark for mark in compared if len(mark) > 1)
        self._find = re.compile(longest_of(self._marks)) if self._marks else None
        # Letters and digits only: templates and their JSON filters leave them unchanged.
        self._nonce = secrets.token_hex(_NONCE_BYTES)

    def is_mark(self, text: str) -> bool:
        """Whether this text alone is a mark that is broken."""
        return text in self._marks

    def broken(self, text: str) -> str:
        """Return the text with a nonce inside each mark."""
        if self._find is None:
            return text
        pieces, begin, at = [], 0, 0
        while (found := self._find.search(text, at)) is not None:
            # What follows the first character may begin a mark of its own.
            at = found.start() + 1
            pieces.append(text[begin:at])
            begin = at
        return self._nonce.join([*pieces, text[begin:]]) if pieces else text

    def broken_deeply(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return a JSON value whose strings, keys included, have no whole mark."""
        match value:
            case str():
                return self.broken(value)
            case Mapping():
                return {
                    self.broken_deeply(key): self.broken_deeply(one) for key, one in value.items()
                }
            case list() | tuple():
                return [self.broken_deeply(one) for one in value]
            case _:
                return value

    def encode(self, text: str, encode: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
        """Return the ids of a prompt with broken marks.

        Args:
            text: The prompt.
            encode: Returns the ids of a text in which every mark is read as a token.
        """
        pieces = text.split(self._nonce)
        if len(pieces) == 1:
            return encode(text)
        return tuple(chain.from_iterable(encode(piece) for piece in pieces))


def with_reasoning_apart(turn: Message, think_start: str, think_end: str) -> Message:
    """Return an assistant turn whose reasoning is not part of its text.

    Some clients send reasoning back inside the text. Templates look for its marks there, but find
    none that is broken.

    Args:
        turn: A message of any role.
        think_start: Mark before the reasoning.
        think_end: Mark after it.
    """
    if turn.role != "assistant" or think_end not in turn.content:
        return turn
    *before, text = turn.content.split(think_end)
    reasoning = turn.reasoning or before[0].rsplit(think_start, 1)[-1].strip("\n")
    return replace(turn, content=text.lstrip("\n"), reasoning=reasoning)
