"""Whether a request of Anthropic's marks what is to be kept; only then it is told what was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.schemas.anthropic import ContentBlock, CountBody


def has_cache_control(wire: CountBody) -> bool:
    """Whether ``cache_control`` stands anywhere in a request.

    It changes nothing of what is kept: whole blocks of every prompt are. Clients that send it read
    the counts; others would be told of something that they never asked for.
    """
    return any(mark is not None for mark in _marks(wire))


def _marks(wire: CountBody) -> Iterator[Any]:
    yield wire.cache_control
    yield from (tool.cache_control for tool in wire.tools or ())
    contents = (wire.system, *(message.content for message in wire.messages))
    for content in contents:
        if content is not None and not isinstance(content, str):
            for block in content:
                yield from _marks_of(block)


def _marks_of(block: ContentBlock) -> Iterator[Any]:
    yield block.cache_control
    # What a tool gave back has blocks of its own.
    inner = block.content if isinstance(block.content, list) else ()
    yield from (part.get("cache_control") for part in inner if isinstance(part, dict))
