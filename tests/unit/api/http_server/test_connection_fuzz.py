"""No bytes whatever make a connection fail, hang, or answer anything but HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import h11
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.http.messages import Reply, Request
from api.http_server.limits import ServerLimits
from tests.support.builders.http_connection import MemoryHost, play

LIMITS = ServerLimits(head_bytes_max=2048, body_bytes_max=4096, linger_s=0.01)
VALID = (
    b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n",
    b"HEAD /a?b=c%20d HTTP/1.1\r\nhost: x\r\naccept: */*\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST /y HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nab",
    b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
)


async def small(request: Request) -> Reply:
    del request
    return Reply(body=b"{}")


def played(pieces: Sequence[bytes]) -> tuple[bytes, MemoryHost]:
    host = MemoryHost(small, LIMITS)
    with structlog.testing.capture_logs() as logs:
        answer = asyncio.run(play(host, pieces))
    failures = [entry for entry in logs if entry["log_level"] in {"error", "critical"}]
    assert not failures
    return answer, host


def statuses(data: bytes, methods: Sequence[str]) -> list[int]:
    """Parse the answers as a client would; fails where they are not HTTP."""
    found = []
    for method in (*methods, "GET"):
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        if not data:
            break
        client.receive_data(data)
        client.receive_data(b"")
        event: Any = None
        while not isinstance(event, h11.EndOfMessage):
            event = client.next_event()
            if isinstance(event, h11.Response):
                found.append(event.status_code)
        data = client.trailing_data[0]
    assert not data
    return found


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    """Valid requests with a few bytes changed, removed or added, cut anywhere."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        width = draw(st.integers(0, 3))
        data[place : place + width] = draw(st.binary(max_size=4))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    edges = [0, *cuts, len(data)]
    return [bytes(data[a:b]) for a, b in pairwise(edges)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5))
@example([b"GET / HTTP/1.1\r\nhost: \xff\r\n\r\n"])
@example([b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_random_bytes_never_break_a_connection(pieces: list[bytes]) -> None:
    answer, host = played(pieces)
    methods = [request.method for request in host.seen]
    assert all(200 <= status < 600 for status in statuses(answer, methods))


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_mutated_requests_never_break_a_connection(pieces: list[bytes]) -> None:
    answer, host = played(pieces)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    for request in host.seen:
        assert len(request.body) <= LIMITS.body_bytes_max


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(VALID[:4]), min_size=1, max_size=5), st.data())
def test_valid_requests_are_answered_however_they_are_cut(
    requests: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    edges = [0, *cuts, len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    answer, host = played(pieces)
    methods = [request.split(b" ")[0].decode() for request in requests]
    assert [request.method for request in host.seen] == methods
    assert statuses(answer, methods) == [200] * len(requests)
