"""Finds the end of tools and system prompt in a prompt.

Conversations with the same tools and system prompt have the same first tokens; they part where the
first message begins. A tokenizer may join the last characters of the preamble with the first ones
of the message, so the common tokens end up to a few tokens before the message's text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from domain.chat.request import ChatRequest, Message
from domain.kv.hashing import common_tokens

#: Beginnings of a message; each joins with the characters before it in another way.
_BEGINNINGS: Final = ("", "a", "\n")


def leading_turns(request: ChatRequest, stand_in: str) -> tuple[Message, ...]:
    """Return the system messages and a first message with ``stand_in`` as its text.

    Returns:
        No message if the request has neither tools nor system messages, or nothing after them.
    """
    turns = tuple(takewhile(lambda one: one.role == "system", request.messages))
    is_bare = not turns and not request.tools
    if is_bare or len(turns) == len(request.messages):
        return ()
    # A result or a call alone is refused by many templates.
    return (*turns, Message(role="user", content=stand_in))


def preamble_end(
    tokens: Sequence[int], preamble: str, encode: Callable[[str], tuple[int, ...]]
) -> int | None:
    """Return the number of tokens that every prompt with this preamble begins with.

    Args:
        tokens: Ids of one of these prompts.
        preamble: The text before the first message's text.
        encode: Returns the ids of a text.

    Returns:
        ``None`` if there are none, or if this prompt does not begin with them.
    """
    first, *others = (encode(preamble + beginning) for beginning in _BEGINNINGS)
    end = min(common_tokens(first, other) for other in others)
    return end if end and tuple(tokens[:end]) == first[:end] else None
