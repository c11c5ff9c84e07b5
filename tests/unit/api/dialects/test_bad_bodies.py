"""A seeded slice of the fuzz corpus against every route: typed answers, whatever is sent."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote, urlsplit

import pytest

from api.errors import dialect_of, error_reply
from api.framework.answer import check_content
from api.http.messages import Reply, Request
from api.http_server.request import read_target
from api.operations import RouteTable, routes
from bench.fuzz.requests import FuzzRequest, fuzz_requests
from bench.fuzz.sending import fault_of
from domain.errors import SemanticError
from tests.support.builders.api import FakeApi, fake_api, leave

BODIES = 500


async def fault(api: FakeApi, table: RouteTable, sent: FuzzRequest) -> str | None:
    """Send one as the gate would, from a client that does not wait; return what is wrong."""
    path = unquote(urlsplit(sent.target).path)
    try:
        target = read_target(sent.target)
        path = target.path
        check_content(sent.headers)
        if sent.method not in table.allowed(target.route_path):
            return None
        request = Request(id="req-1", method=sent.method, path=path)
        request.gone.set()
        reply = await api.send(
            sent.method, sent.target, sent.body, request=request, headers=sent.headers
        )
    except SemanticError as error:
        reply = error_reply(error, dialect_of(path, sent.headers), "req-1")
    if not isinstance(reply, Reply):
        await leave(reply)
        return None
    return fault_of(path, reply.status, sent.headers, reply.body)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_body_gets_a_typed_answer(seed: int) -> None:
    async def scenario() -> list[str]:
        found = []
        async with fake_api() as api:
            api.worker_is("ready")
            table = RouteTable(routes(api.app))
            for sent in fuzz_requests(seed, BODIES):
                wrong = await fault(api, table, sent)
                if wrong is not None:
                    found.append(f"{sent.method} {sent.target} {sent.strokes}: {wrong}")
        return found

    assert asyncio.run(scenario()) == []


def test_the_same_seed_gives_the_same_requests() -> None:
    assert list(fuzz_requests(5, 50)) == list(fuzz_requests(5, 50))
    assert list(fuzz_requests(5, 50)) != list(fuzz_requests(6, 50))


def test_the_check_detects_a_failure_and_an_untyped_answer() -> None:
    assert fault_of("/v1/messages", 500, {}, b"{}") is not None
    assert fault_of("/v1/messages", 400, {}, b"oh") is not None
    assert fault_of("/v1/messages", 400, {}, b'{"error":{"message":"m"}}') is not None
    typed = b'{"type":"error","error":{"type":"t","message":"m"},"request_id":"r"}'
    assert fault_of("/v1/messages", 400, {}, typed) is None
    assert fault_of("/v1/chat/completions", 400, {}, typed) is None
    assert fault_of("/v1/jobs", 400, {}, typed) is not None
