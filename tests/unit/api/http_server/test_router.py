"""The router, against a framework of a few lines."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog

from api.errors import TransportError
from api.http.messages import Reply, Request, Route
from api.http_server.limits import ServerLimits
from api.http_server.router import RouteMatch, Router
from domain.errors import Unavailable
from tests.support.polling import let_tasks_run, scaled

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nNot found"


async def handler(request: Request) -> Reply:
    del request
    return Reply()


ROUTES = (
    Route(method="GET", pattern="/x", handler=handler),
    Route(method="GET", pattern="/x/{name}", handler=handler),
)


def matched(number: int, **params: str) -> bytes:
    body = json.dumps({"route": number, "params": params}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def router(host: str, port: int) -> Router:
    logger = structlog.stdlib.get_logger()
    return Router(ROUTES, host, port, secret="s", limits=ServerLimits(), logger=logger)


async def match(
    answers: list[bytes], *, times: int = 1, method: str = "GET"
) -> tuple[list[RouteMatch | None], list[bytes]]:
    """Match the same path against a server that sends these answers once, cut as given."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        for answer in answers:
            writer.write(answer)
            await writer.drain()
            await let_tasks_run(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    asked = router(host, port)
    async with asyncio.timeout(scaled(60)), server:
        return [await asked.match(method, "/x") for _ in range(times)], heads


@pytest.mark.parametrize("cut", [1, 20, len(NOT_FOUND) - 1])
def test_path_without_a_route_has_no_match_however_the_answer_is_cut(cut: int) -> None:
    found, heads = asyncio.run(match([NOT_FOUND[:cut], NOT_FOUND[cut:]]))
    assert found == [None]
    assert heads == [b"GET /x HTTP/1.1\r\nhost: router\r\nx-semantic-router: s\r\n\r\n"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_route_of_a_fixed_path_is_asked_for_once(method: str) -> None:
    found, heads = asyncio.run(match([matched(0)], times=3, method=method))
    assert found == [RouteMatch(ROUTES[0])] * 3
    assert [head.split()[0] for head in heads] == [b"GET"]


def test_values_of_a_pattern_are_decoded_and_not_remembered() -> None:
    found, heads = asyncio.run(match([matched(1, name="a%2Fb")], times=2))
    assert found == [RouteMatch(ROUTES[1], {"name": "a/b"})] * 2
    assert len(heads) == 2


@pytest.mark.parametrize("method", ["OPTIONS", "BREW"])
def test_method_without_routes_is_not_asked_for(method: str) -> None:
    assert asyncio.run(match([], method=method)) == ([None], [])


@pytest.mark.parametrize(
    "answers",
    [[], [b"garbage\r\n\r\n"], [b"x" * 70_000], [b"HTTP/1.1 204 No"]],
    ids=["nothing", "garbage", "endless", "half"],
)
def test_framework_that_makes_no_sense_is_unavailable(answers: list[bytes]) -> None:
    with pytest.raises(Unavailable):
        asyncio.run(match(answers))


@pytest.mark.parametrize("status", [b"204 No Content", b"403 Forbidden", b"500 Internal"])
def test_other_status_is_an_internal_error(status: bytes) -> None:
    answer = b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % status
    with pytest.raises(TransportError) as caught:
        asyncio.run(match([answer]))
    assert caught.value.status == 500


def test_framework_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        asyncio.run(router("127.0.0.1", 1).match("GET", "/x"))
