"""Parts of streams: server-sent events, and lines of JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from api.http.messages import Request
from domain.errors import SemanticError

T = TypeVar("T")

_LINE_END = re.compile(r"\r\n|\r|\n")
# Made once: with arguments, json.dumps makes one for every call, which is most of its cost here.
_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One event.

    Attributes:
        data: JSON values, or a text that is sent as it is.
        event: The ``event:`` line, if there is one; no line ends.
        id: The ``id:`` line, if there is one; no line ends.
        is_tight: Whether no space follows ``data:``.
    """

    data: Mapping[str, Any] | str
    event: str | None = None
    id: str | None = None
    is_tight: bool = False


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that clients skip; it keeps a silent connection open."""

    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A JSON object on a line of its own, in a stream of them."""

    data: Mapping[str, Any]


Part = Frame | Comment | Line


def encode(parts: Iterable[Part]) -> bytes:
    """Return the bytes of parts, in order."""
    return b"".join(map(_encoded, parts))


def _encoded(part: Part) -> bytes:
    match part:
        case Frame():
            return frame(part.data, event=part.event, id=part.id, is_tight=part.is_tight)
        case Comment():
            return comment(part.text)
        case Line():
            # ASCII: some clients also split at U+0085, U+2028 and U+2029, which JSON leaves as is.
            return json.dumps(part.data, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def failure(error: SemanticError) -> Frame:
    """Return the last event of a stream that cannot go on."""
    return Frame(event="error", data={"code": error.code, "detail": error.message})


async def follow(
    first: T,
    read: Callable[[], Awaitable[T]],
    news: Callable[[T], list[Part]],
    request: Request,
    *,
    look_s: float,
    ping_s: float,
) -> AsyncIterator[bytes]:
    """Yield what is new in a value, until the client leaves or the process ends its streams.

    Args:
        first: The value as it was read before the reply, so that an error has a status.
        news: Returns the events of a value, none where it is as before.
        look_s: Seconds between two reads.
        ping_s: Most seconds of silence.
    """
    loop, value = asyncio.get_running_loop(), first
    ping_at_s = loop.time() + ping_s
    while True:
        parts = news(value)
        if not parts and loop.time() >= ping_at_s:
            parts = [Comment("ping")]
        if parts:
            yield encode(parts)
            ping_at_s = loop.time() + ping_s
        if await request.ends_within(look_s):
            return
        try:
            value = await read()
        except SemanticError as error:
            yield encode([failure(error)])
            return


def frame(
    data: Mapping[str, Any] | str,
    *,
    event: str | None = None,
    id: str | None = None,  # noqa: A002 - the field's name in the standard
    is_tight: bool = False,
) -> bytes:
    """Return one event; a text with several lines becomes several ``data:`` lines."""
    lines, head = [], "data:" if is_tight else "data: "
    if id is not None:
        lines.append(f"id: {_one_line(id)}\n")
    if event is not None:
        lines.append(f"event: {_one_line(event)}\n")
    if isinstance(data, str):
        lines.extend(f"{head}{line}\n" for line in _LINE_END.split(data))
    else:
        lines.append(f"{head}{compact_json(data)}\n")
    lines.append("\n")
    return "".join(lines).encode("utf-8", "replace")


def comment(text: str) -> bytes:
    """Return a comment without a blank line after it.

    With the blank line the decoders of the common SDKs hand on an empty event once any ``id:``
    was seen; the next event ends the comment just as well.
    """
    return f": {_one_line(text)}\n".encode("utf-8", "replace")


def compact_json(value: Mapping[str, Any]) -> str:
    """Return JSON without white space; it never holds a line end, since JSON escapes them."""
    return _JSON.encode(value)


def _one_line(text: str) -> str:
    return _LINE_END.sub(" ", text)
