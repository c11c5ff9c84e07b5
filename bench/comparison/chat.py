"""A client that streams one chat answer, or disconnects in the middle of it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

ANSWER_SECONDS_MAX = 180.0
#: Fields in which servers return reasoning; it counts as text.
_TEXT_KEYS = ("content", "reasoning_content", "reasoning")

Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer.

    Attributes:
        first_s: Seconds from the request, on an open connection, to the first text.
        total_s: Seconds to the end.
        text: The whole text.
        prompt_tokens: Prompt tokens as the server counts them.
        cached_tokens: Prompt tokens that the server reports as cached.
        completion_tokens: Generated tokens.
    """

    first_s: float
    total_s: float
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def ask(port: int, model: str, messages: Sequence[Message], max_tokens: int) -> Reply:
    """Stream a greedy answer to its end.

    Raises:
        OSError: The server cannot be reached or took too long.
        RuntimeError: The server answered with an error.
    """
    with closing(_connection(port)) as connection:
        sent = time.perf_counter()
        first = None
        parts: list[str] = []
        usage: dict[str, Any] = {}
        for chunk in _chunks(connection, _body(model, messages, max_tokens)):
            usage = chunk.get("usage") or usage
            text = _text(chunk)
            if text and first is None:
                first = time.perf_counter()
            parts.append(text)
        done = time.perf_counter()
    if not usage:
        raise RuntimeError("the answer ended without usage")
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        first_s=(first or done) - sent,
        total_s=done - sent,
        text="".join(parts),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        completion_tokens=usage["completion_tokens"],
    )


def ask_together(
    port: int, model: str, conversations: Sequence[Sequence[Message]], max_tokens: int
) -> list[Reply]:
    """Send all requests at once and wait for all answers."""
    with ThreadPoolExecutor(len(conversations)) as pool:
        asked = [pool.submit(ask, port, model, messages, max_tokens) for messages in conversations]
        return [one.result() for one in asked]


def leave_after(
    port: int, model: str, messages: Sequence[Message], *, max_tokens: int, pieces: int
) -> None:
    """Close the connection after some pieces of text.

    Raises:
        RuntimeError: The answer ended before.
    """
    received = 0
    with closing(_connection(port)) as connection:
        for chunk in _chunks(connection, _body(model, messages, max_tokens)):
            received += bool(_text(chunk))
            if received == pieces:
                return
    raise RuntimeError(f"the answer ended after {received} pieces of text")


def _connection(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS_MAX)
    connection.connect()
    return connection


def _body(model: str, messages: Sequence[Message], max_tokens: int) -> bytes:
    return json.dumps(
        {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            # Servers have different defaults; all must get the same prompt.
            "chat_template_kwargs": {"enable_thinking": False},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def _chunks(connection: http.client.HTTPConnection, body: bytes) -> Iterator[dict[str, Any]]:
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {response.read(300)!r}")
    while line := response.readline():
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(f"error in the stream: {chunk['error']}")
            yield chunk


def _text(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return "".join(delta.get(key) or "" for key in _TEXT_KEYS)
