"""What a case gets: a service, a client of ``/v1/messages``, and the size of its load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Self
from zlib import crc32

import httpx

from bench.comparison.conversation import QUESTIONS
from tests.support.processes.service import Service

#: Follows whichever model is loaded.
MODEL: Final = "claude-stress"
#: Seconds for one answer, the wait in the queue included.
ANSWER_S: Final = 600.0
Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One request and its reply.

    Attributes:
        at_s: Monotonic time at which it was sent.
        ms: Milliseconds to the last byte of the reply.
        status: The HTTP status; 0 if the connection was lost.
        error: The type of the error, or the exception.
        message: The message of the error.
        retry_after: The header ``retry-after``.
        text: The text of the answer.
        cached_tokens: Those of them that were not computed.
    """

    at_s: float
    ms: float
    status: int
    error: str | None = None
    message: str = ""
    retry_after: str | None = None
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def is_answer(self) -> bool:
        """Whether the service answered the question."""
        return self.status == httpx.codes.OK

    @property
    def is_failure(self) -> bool:
        """Whether the service failed: an error of its own, or no reply at all."""
        return self.status == 0 or self.status >= httpx.codes.INTERNAL_SERVER_ERROR


class StressClient(AbstractAsyncContextManager["StressClient"]):
    """Any number of requests at once.

    Args:
        base_url: Address of the service.
    """

    def __init__(self, base_url: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(ANSWER_S, connect=60.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(
        self, messages: Sequence[Message], max_tokens: int, *, agent: str = "stress", **more: Any
    ) -> Reply:
        """Send one greedy request, and return its reply; a lost connection is a reply too.

        Args:
            messages: The conversation.
            max_tokens: Most tokens of the answer.
            agent: Name of the client; a key of this name is sent if it is one.
            **more: Further fields of the body.
        """
        body = {"model": MODEL, "messages": list(messages), "max_tokens": max_tokens}
        headers = {"x-api-key": agent, "user-agent": f"stress/{agent[:20]}"}
        at_s = time.monotonic()
        try:
            reply = await self._http.post(
                "/v1/messages", json={"temperature": 0, **body, **more}, headers=headers
            )
        except httpx.HTTPError as error:
            return Reply(at_s=at_s, ms=_since(at_s), status=0, error=repr(error))
        return _reply(reply, at_s)

    async def is_alive(self, path: str = "/health/live") -> bool:
        """Return whether a health check succeeds."""
        try:
            return (await self._http.get(path, timeout=30.0)).is_success
        except httpx.HTTPError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a case.

    Attributes:
        service: A service that is ready and idle.
        client: Sends requests to it.
        scale: Share of the load and of the time of the whole case.
    """

    service: Service
    client: StressClient
    scale: float = 1.0

    def count(self, number: int) -> int:
        """Return how many of ``number`` requests or turns this run has."""
        return max(2, round(number * self.scale))

    def seconds(self, whole_s: float) -> float:
        """Return how long this run lasts instead of ``whole_s``."""
        return whole_s * self.scale


def question(name: str) -> list[Message]:
    """Return a first turn; two names never make equal requests, which would be joined.

    The questions are spread evenly over any range of names, so that parts of a load are alike.
    """
    asked = QUESTIONS[crc32(name.encode()) % len(QUESTIONS)]
    return [{"role": "user", "content": f"{name}. {asked}"}]


def story(name: str) -> list[Message]:
    """Return a first turn whose answer is as long as it may be."""
    return [{"role": "user", "content": f"{name}. Tell me a long story about a fox."}]


async def at_once(
    number: int, ask: Callable[[int], Awaitable[Reply]], *, clients: int | None = None
) -> list[Reply]:
    """Send ``number`` requests, at most ``clients`` of them at once; default: all."""
    places = asyncio.Semaphore(clients or number)

    async def one(index: int) -> Reply:
        async with places:
            return await ask(index)

    return list(await asyncio.gather(*map(one, range(number))))


def _reply(reply: httpx.Response, at_s: float) -> Reply:
    ms = _since(at_s)
    try:
        data = reply.json()
    except ValueError:
        return Reply(at_s=at_s, ms=ms, status=reply.status_code, error="the body is no JSON")
    if not reply.is_success:
        return Reply(
            at_s=at_s,
            ms=ms,
            status=reply.status_code,
            error=str(data.get("error", {}).get("type")),
            message=str(data.get("error", {}).get("message")),
            retry_after=reply.headers.get("retry-after"),
        )
    usage = data["usage"]
    cached = usage.get("cache_read_input_tokens") or 0
    return Reply(
        at_s=at_s,
        ms=ms,
        status=reply.status_code,
        text="".join(block.get("text", "") for block in data["content"]),
        prompt_tokens=usage["input_tokens"]
        + cached
        + (usage.get("cache_creation_input_tokens") or 0),
        cached_tokens=cached,
    )


def _since(at_s: float) -> float:
    return 1000 * (time.monotonic() - at_s)
