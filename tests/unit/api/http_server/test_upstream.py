"""The line to the framework, against a framework of a few lines."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from api.errors import TransportError
from api.http.messages import Dialect, Reply, Request
from api.http_server.exchange import Exchange, Exchanges
from api.http_server.limits import ServerLimits
from api.http_server.upstream import Upstream
from domain.errors import Unavailable

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nNot found"
DONE = b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"


async def asked(answers: list[bytes], *, claim: bool = False, method: str = "GET") -> Reply | None:
    """Dispatch one request to a server that sends these answers, cut as given."""
    heads: list[bytes] = []
    exchange = Exchange(
        Request(id="req_1", method=method, path="/x"), route_path="/x", dialect=Dialect.NATIVE
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        exchange.claimed = claim
        for answer in answers:
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    upstream = Upstream(
        host, port, secret="s", limits=ServerLimits(), logger=structlog.stdlib.get_logger()
    )
    await upstream.dispatch(exchange)
    async with asyncio.timeout(60), server:
        reply = await exchange.answered()
    assert not isinstance(reply, Reply) or reply.status == 200
    assert all(b"x-semantic-gate: s\r\n" in head for head in heads)
    return reply if isinstance(reply, Reply) else None


@pytest.mark.parametrize("cut", [1, 20, len(NOT_FOUND) - 1])
def test_unrouted_request_is_answered_with_nothing_however_it_is_cut(cut: int) -> None:
    assert asyncio.run(asked([NOT_FOUND[:cut], NOT_FOUND[cut:]])) is None


@pytest.mark.parametrize("method", ["OPTIONS", "BREW"])
def test_method_without_routes_is_not_asked_for(method: str) -> None:
    assert asyncio.run(asked([], method=method)) is None


@pytest.mark.parametrize(
    "answers",
    [[], [b"garbage\r\n\r\n"], [b"x" * 20_000], [b"HTTP/1.1 204 No"]],
    ids=["nothing", "garbage", "endless", "half"],
)
def test_framework_that_makes_no_sense_is_unavailable(answers: list[bytes]) -> None:
    with pytest.raises(Unavailable):
        asyncio.run(asked(answers))


@pytest.mark.parametrize("answer", [DONE, b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"])
def test_answer_without_a_handler_is_an_internal_error(answer: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        asyncio.run(asked([answer]))
    assert caught.value.status == 500


def test_framework_that_is_not_there_is_unavailable() -> None:
    async def dispatch() -> None:
        upstream = Upstream(
            "127.0.0.1",
            1,
            secret="s",
            limits=ServerLimits(),
            logger=structlog.stdlib.get_logger(),
        )
        request = Request(id="req_1", method="GET", path="/x")
        await upstream.dispatch(Exchange(request, route_path="/x", dialect=Dialect.NATIVE))

    with pytest.raises(Unavailable):
        asyncio.run(dispatch())


def test_exchange_is_given_out_once_and_only_for_the_secret() -> None:
    async def claims() -> list[bool]:
        exchanges = Exchanges("s")
        request = Request(id="req_1", method="GET", path="/x")
        exchanges.begin(Exchange(request, route_path="/x", dialect=Dialect.NATIVE))
        attempts = [("req_1", "wrong"), ("req_1", None), ("req_2", "s"), (None, "s")]
        return [
            exchanges.claim(name, secret) is not None
            for name, secret in (*attempts, ("req_1", "s"), ("req_1", "s"))
        ]

    assert asyncio.run(claims()) == [False, False, False, False, True, False]


def test_exchange_that_begins_while_all_end_is_told_so() -> None:
    async def ending() -> bool:
        exchanges = Exchanges("s")
        exchanges.end_streams()
        request = Request(id="req_1", method="GET", path="/x")
        exchanges.begin(Exchange(request, route_path="/x", dialect=Dialect.NATIVE))
        return request.ending.is_set()

    assert asyncio.run(ending())
