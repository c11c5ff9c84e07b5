"""A streaming client that records the arrival of each token; the same for every server.

It shares the cores with the server under test, so it does little work: a bare socket, and lines
that are searched instead of parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvloop

STREAM_SECONDS_MAX = 300.0
_EMPTY_CONTENT = (b'"content":""', b'"content": ""')


@dataclass(slots=True)
class StreamTrace:
    """The times of one answer, in seconds on a monotonic clock.

    Attributes:
        sent: Just before the request was sent, on an open connection.
        tokens: Arrival of each piece of text.
        done: End of the answer.
        completion_tokens: Generated tokens as the server counts them.
        prompt_tokens: Prompt tokens as the server counts them.
    """

    sent: float
    tokens: list[float] = field(default_factory=list)
    done: float = 0.0
    completion_tokens: int = 0
    prompt_tokens: int = 0


async def stream_chat(host: str, port: int, body: dict[str, Any]) -> StreamTrace:
    """Send one OpenAI chat request with ``stream`` and read the answer to its end."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\n"
        "content-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    trace = StreamTrace(sent=time.perf_counter())
    writer.write(head.encode() + content)
    status = await reader.readline()
    assert b" 200 " in status, status
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            _note(trace, line)
    trace.done = time.perf_counter()
    writer.close()
    assert trace.completion_tokens, "the server reported no number of generated tokens"
    return trace


def _note(trace: StreamTrace, line: bytes) -> None:
    assert b'"error"' not in line, line
    if b'"content"' in line and not any(empty in line for empty in _EMPTY_CONTENT):
        trace.tokens.append(time.perf_counter())
    if b'"completion_tokens"' in line:
        usage = json.loads(line[6:])["usage"]
        trace.completion_tokens = usage["completion_tokens"]
        trace.prompt_tokens = usage["prompt_tokens"]


def stream_together(base_url: str, bodies: list[dict[str, Any]]) -> list[StreamTrace]:
    """Send all requests at once and read the answers to their ends."""
    return uvloop.run(_stream_together(base_url, bodies))


async def _stream_together(base_url: str, bodies: list[dict[str, Any]]) -> list[StreamTrace]:
    address = urlsplit(base_url)
    assert address.hostname
    assert address.port
    async with asyncio.timeout(STREAM_SECONDS_MAX):
        return list(
            await asyncio.gather(
                *(stream_chat(address.hostname, address.port, body) for body in bodies)
            )
        )
