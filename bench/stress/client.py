"""What a case gets, a service, a client and the size of its load, and its targets and verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Self
from zlib import crc32

import httpx

from bench.report.section import percentile
from bench.together.workloads import QUESTIONS
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


SHARES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One target of a case.

    Attributes:
        target: What is required.
        figure: What was measured.
        reached: Whether it is as required.
        timed: Whether it depends on the speed of the machine; such a target fails no run.
    """

    target: str
    figure: str
    reached: bool
    timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a case.

    Attributes:
        checks: Its targets.
        head: Titles of its table, if it has one; those of numbers begin with ``>``.
        rows: Rows of that table.
        note: What explains a target that the machine misses.
    """

    checks: Sequence[Check]
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = field(default_factory=tuple)
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether every target is reached that does not depend on the machine's speed."""
        return all(one.reached or one.timed for one in self.checks)

    @property
    def verdict(self) -> str:
        """``reached``, or which targets are not."""
        missed = [one.target for one in self.checks if not one.reached]
        return f"**fell short**: {'; '.join(missed)}" if missed else "reached"


def answered(replies: Sequence[Reply], least: float) -> Check:
    """Require a share of answers among all replies."""
    share = sum(one.is_answer for one in replies) / len(replies)
    return Check(
        target=f"≥ {least:.0%} answered",
        figure=f"{share:.1%} of {len(replies)}",
        reached=share >= least,
    )


def no_failure(replies: Iterable[Reply]) -> Check:
    """Require that no reply is a 5xx, and that no connection is lost."""
    failures = Counter(one.status or str(one.error) for one in replies if one.is_failure)
    return Check(
        target="no 5xx, no lost connection",
        figure=", ".join(f"{count} of {what}" for what, count in failures.items()) or "none",
        reached=not failures,
    )


def well_formed_refusals(replies: Iterable[Reply], *, required: bool) -> Check:
    """Require that each 429 names its error and when to retry.

    Args:
        replies: All replies.
        required: Whether there must be one.
    """
    refused = [one for one in replies if one.status == 429]
    good = [
        one
        for one in refused
        if one.error == "rate_limit_error" and int(one.retry_after or "0") >= 1
    ]
    least = "some 429, " if required else ""
    return Check(
        target=f"{least}each 429 with type and Retry-After",
        figure=f"{len(good)} of {len(refused)}",
        reached=len(good) == len(refused) and bool(refused or not required),
    )


def refused_by(replies: Iterable[Reply], what: str) -> Check:
    """Require that some request was refused because ``what`` was full."""
    number = sum(f"{what} is full" in one.message for one in replies)
    return Check(target=f"429 for a full {what}", figure=str(number), reached=number > 0)


def within(ms: Sequence[float], share: float, most_ms: float) -> Check:
    """Require a percentile of latencies; depends on the machine."""
    value = percentile(ms, share) if ms else float("inf")
    return Check(
        target=f"p{share * 100:g} < {most_ms / 1000:g} s",
        figure=f"{value / 1000:.2f} s",
        reached=value < most_ms,
        timed=True,
    )


def alive(*, states: Sequence[bool], path: str) -> Check:
    """Require that every health check succeeded."""
    return Check(
        target=f"{path} answers 200",
        figure=f"{sum(states)} of {len(states)}",
        reached=bool(states) and all(states),
    )


def latencies(replies: Iterable[Reply]) -> list[float]:
    """Return the milliseconds of the answers."""
    return [one.ms for one in replies if one.is_answer]


def percentiles(ms: Sequence[float]) -> tuple[float, ...]:
    """Return p50, p95 and p99 in milliseconds; nothing without values."""
    return tuple(round(percentile(ms, share), 1) for share in SHARES) if ms else ()
