"""Replies of Robyn: found whole however they are cut, and nothing else is passed on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.messages import Reply, Request
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from api.http_server.replies import BrokenReply, RobynConnection
from tests.support.builders.http_connection import MemoryHost, MemoryTransport, play
from tests.support.polling import let_tasks_run

OURS = b"request-id: req_1\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\n" + OURS + b"content-length: 5\r\n\r\nhello"
PIECES = (b"hello", b"\r\n0\r\n\r\n" * 3 + b"last!")
CHUNKS = b"5\r\nhello\r\n1A\r\n" + PIECES[1] + b"\r\n0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" + OURS + b"\r\n" + CHUNKS
NO_BODY = b"HTTP/1.1 204 No Content\r\n" + OURS + b"\r\n"


@dataclass
class Taker:
    """Keeps what is passed on."""

    data: bytes = b""
    pieces: list[bytes] = field(default_factory=list)

    def take_head(self, head: bytes) -> None:
        self.data += head

    def take_body(self, data: bytes, piece: bytes | None) -> None:
        self.data += data
        if piece:
            self.pieces.append(piece)


def streaming() -> Exchange:
    """A request whose handler has sent its stream to its end."""
    exchange = Exchange.begin(lambda _: False)
    for piece in PIECES:
        exchange.pipe.put(piece)
    exchange.pipe.end()
    return exchange


async def exchanged(
    pieces: list[bytes], *, is_head: bool = False, times: int = 1, ends: bool = False
) -> tuple[list[int], Taker]:
    """Ask and get these pieces, so often on the same connection."""
    taker = Taker()
    connection = RobynConnection(taker.take_head, taker.take_body)
    connection.connection_made(MemoryTransport(connection))
    statuses = []
    for _ in range(times):
        asked = asyncio.ensure_future(connection.ask(streaming(), is_head=is_head))
        await let_tasks_run(1)
        for piece in pieces:
            connection.data_received(piece)
        if ends:
            connection.connection_lost(None)
        statuses.append(await asked)
    return statuses, taker


@given(st.sampled_from([WHOLE, CHUNKED]), st.lists(st.integers(0, len(CHUNKED)), max_size=8))
def test_reply_is_whole_however_it_is_cut(reply: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(reply), *(min(cut, len(reply)) for cut in cuts)})
    pieces = [reply[start:end] for start, end in pairwise(edges)]
    statuses, taker = asyncio.run(exchanged(pieces, times=2))
    assert statuses == [200, 200]
    assert taker.data == reply * 2
    assert b"".join(taker.pieces) == (b"" if reply is WHOLE else b"".join(PIECES) * 2)


@pytest.mark.parametrize("reply", [WHOLE[:-5], CHUNKED[: -len(CHUNKS)], NO_BODY])
def test_reply_to_head_ends_with_its_head(reply: bytes) -> None:
    statuses, taker = asyncio.run(exchanged([reply], is_head=True))
    assert statuses in ([200], [204])
    assert taker.data == reply


def test_reply_without_content_ends_with_its_head() -> None:
    assert asyncio.run(exchanged([NO_BODY]))[0] == [204]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"garbage\r\n\r\n"],
        [b"x" * 70_000],
        [b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nNot found"],
        [WHOLE + b"more"],
        [CHUNKED + b"more"],
        [CHUNKED.replace(b"5\r\nhello", b"05\r\nhello")],
    ],
    ids=["garbage", "endless", "robyn's own", "surplus", "surplus of chunks", "other chunks"],
)
def test_what_is_no_reply_of_a_handler_breaks_the_connection(pieces: list[bytes]) -> None:
    with pytest.raises(BrokenReply):
        asyncio.run(exchanged(pieces))


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 204 No", WHOLE[:-1], CHUNKED[:-1]])
def test_reply_that_ends_early_is_broken(part: bytes) -> None:
    with pytest.raises(BrokenReply):
        asyncio.run(exchanged([part], ends=True))


class Unreachable(MemoryHost):
    """A shield whose Robyn does not answer."""

    async def connect(self, connection: RobynConnection) -> None:
        del connection
        raise ConnectionRefusedError


def test_paused_body_goes_on_only_after_the_call_that_resumes_it() -> None:
    """What is written in that call stays in uvloop until the next event of the whole loop."""

    async def run() -> list[bytes]:
        connection = RobynConnection(lambda _: None, lambda _, __: None)
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        connection.pause_writing()
        exchange = Exchange.begin(lambda _: False)
        exchange.body.extend([b"head", b"body"])
        asked = asyncio.ensure_future(connection.ask(exchange, is_head=False))
        await let_tasks_run(1)
        sent = [transport.sent]
        connection.resume_writing()
        sent.append(transport.sent)
        await let_tasks_run(1)
        connection.connection_lost(None)
        with pytest.raises(BrokenReply):
            await asked
        return [*sent, transport.sent]

    assert asyncio.run(run()) == [b"", b"", b"headbody"]


class NonsenseRobyn(MemoryTransport):
    """Robyn's end of a connection, with a reply that no handler gave."""

    def __init__(self, connection: RobynConnection) -> None:
        super().__init__(connection)
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        del data
        reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        asyncio.get_running_loop().call_soon(self._connection.data_received, reply)


class Nonsense(MemoryHost):
    """A shield in front of it."""

    async def connect(self, connection: RobynConnection) -> None:
        connection.connection_made(NonsenseRobyn(connection))


@pytest.mark.parametrize(
    ("host", "status", "error"),
    [(Unreachable, b"503", b"overloaded_error"), (Nonsense, b"500", b"api_error")],
)
def test_robyn_that_is_away_or_makes_no_sense_is_an_error_of_the_callers_dialect(
    host: type[MemoryHost], status: bytes, error: bytes
) -> None:
    async def answer(request: Request) -> Reply:
        raise AssertionError(request)

    async def run() -> bytes:
        request = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
        return await play(host(answer, ServerLimits()), [request])

    reply = asyncio.run(run())
    assert reply.startswith(b"HTTP/1.1 " + status + b" ")
    assert b'"type": "' + error + b'"' in reply
    assert b"request-id: " in reply
