"""Finds ``cache_control`` in Anthropic requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.schemas.anthropic import ContentBlock, CountBody


def has_cache_control(wire: CountBody) -> bool:
    """Whether a request contains ``cache_control``.

    It does not change the prefix cache, which stores the whole blocks of every prompt. It decides
    whether the usage reports written cache tokens, since only clients that send it read them.
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
    # A tool result contains blocks of its own.
    inner = block.content if isinstance(block.content, list) else ()
    yield from (part.get("cache_control") for part in inner if isinstance(part, dict))
