"""A streaming client of OpenAI chat completions; the same for every server.

It shares the cores with the server under test, so it does little work: a bare socket, and lines
that are searched and kept instead of parsed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvloop

STREAM_SECONDS_MAX = 300.0
_EMPTY_CONTENT = (b'"content":""', b'"content": ""', b'"content":null', b'"content": null')

Message = dict[str, str]


@dataclass(slots=True)
class StreamTrace:
    """One answer; times are in seconds on a monotonic clock.

    Attributes:
        sent: Just before the request was sent, on an open connection.
        tokens: Arrival of each piece of text.
        done: End of the answer.
        completion_tokens: Generated tokens as the server counts them.
        prompt_tokens: Prompt tokens as the server counts them.
        cached_tokens: Prompt tokens that the server reports as cached.
        pieces: The JSON of each piece of text.
    """

    sent: float
    tokens: list[float] = field(default_factory=list)
    done: float = 0.0
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    pieces: list[str] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        """Seconds to the first text, or to the end of an answer without any."""
        return (self.tokens[0] if self.tokens else self.done) - self.sent

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(json.loads(one)["choices"][0]["delta"]["content"] for one in self.pieces)


def chat_body(model: str, messages: Sequence[Message], max_tokens: int) -> dict[str, Any]:
    """Return a greedy request; all servers get the same prompt from it."""
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        # Servers have different defaults.
        "chat_template_kwargs": {"enable_thinking": False},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def stream_together(base_url: str, bodies: Sequence[dict[str, Any]]) -> list[StreamTrace]:
    """Send all requests at once and read the answers to their ends.

    Raises:
        OSError: The server cannot be reached or took too long.
        RuntimeError: The server answered with an error.
    """

    async def together() -> list[StreamTrace]:
        async with asyncio.timeout(STREAM_SECONDS_MAX):
            return await asyncio.gather(*(_stream(base_url, body) for body in bodies))

    traces = uvloop.run(together())
    if not all(trace.completion_tokens for trace in traces):
        raise RuntimeError("the server reported no number of generated tokens")
    return traces


async def _stream(base_url: str, body: dict[str, Any]) -> StreamTrace:
    """Read one answer to its end."""
    address = urlsplit(base_url)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
        "content-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    trace = StreamTrace(sent=time.perf_counter())
    writer.write(head.encode() + content)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r}: {await reader.read(1000)!r}")
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            _note(trace, line)
    trace.done = time.perf_counter()
    writer.close()
    return trace


def _note(trace: StreamTrace, line: bytes) -> None:
    if b'"error"' in line:
        raise RuntimeError(f"error in the stream: {line!r}")
    if b'"content"' in line and not any(empty in line for empty in _EMPTY_CONTENT):
        trace.tokens.append(time.perf_counter())
        trace.pieces.append(line[6:].decode())
    if b'"completion_tokens"' in line:
        usage = json.loads(line[6:])["usage"]
        trace.completion_tokens = usage["completion_tokens"]
        trace.prompt_tokens = usage["prompt_tokens"]
        trace.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contender's answers to requests that were sent at once.

    Attributes:
        total_s: From the first request to the last end.
        tokens: Generated tokens of all streams.
        window_s: The time in which all streams decode: from the last first text to the first end.
            0 where one stream ends before another begins.
        decode_per_s: Tokens a second in that window; 0 without one.
        first_p50_s: Median time to the first text of a stream.
        first_last_s: Time to the last stream's first text.
        cached_tokens: Prompt tokens that the contender reports as reused.
        cpu_ms_a_token: CPU time of all its processes, for each token.
    """

    total_s: float
    tokens: int
    window_s: float
    decode_per_s: float
    first_p50_s: float
    first_last_s: float
    cached_tokens: int
    cpu_ms_a_token: float


def figures_of(traces: Sequence[StreamTrace], cpu_s: float) -> Figures:
    """Return the figures of streams that began at once and took ``cpu_s`` CPU seconds."""
    firsts = [trace.first_s for trace in traces]
    tokens = sum(trace.completion_tokens for trace in traces)
    begin = max((trace.tokens[0] for trace in traces if trace.tokens), default=0.0)
    end = min((trace.tokens[-1] for trace in traces if trace.tokens), default=0.0)
    window_s = max(0.0, end - begin)
    decoded = sum(_decoded(trace, begin, end) for trace in traces)
    return Figures(
        total_s=max(trace.done for trace in traces) - min(trace.sent for trace in traces),
        tokens=tokens,
        window_s=window_s,
        decode_per_s=decoded / window_s if window_s else 0.0,
        first_p50_s=statistics.median(firsts),
        first_last_s=max(firsts),
        cached_tokens=sum(trace.cached_tokens for trace in traces),
        cpu_ms_a_token=1000 * cpu_s / max(1, tokens),
    )


def _decoded(trace: StreamTrace, begin: float, end: float) -> float:
    """Return the tokens of a stream in a window; a piece of text may have several tokens."""
    inside = sum(begin < at <= end for at in trace.tokens)
    return inside * trace.completion_tokens / max(1, len(trace.tokens))
