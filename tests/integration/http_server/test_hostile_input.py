"""Hostile input against the running server: a clear refusal, and the next request works."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.polling import wait_until
from tests.support.processes.sample_server import Answer, SampleServer, parse, sample_server

HEAD_MAX = 4096
BODY_MAX = 100_000
TIMEOUT_S = 0.5
PATIENT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    # Patient: a test that is slow to send must not be told that it was too slow.
    with sample_server(
        head_bytes_max=HEAD_MAX,
        request_bytes_max=BODY_MAX,
        head_timeout_s=PATIENT_S,
        body_timeout_s=PATIENT_S,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def strict_on_heads() -> Iterator[SampleServer]:
    with sample_server(head_timeout_s=TIMEOUT_S, body_timeout_s=PATIENT_S) as running:
        yield running


@pytest.fixture(scope="module")
def strict_on_bodies() -> Iterator[SampleServer]:
    with sample_server(head_timeout_s=PATIENT_S, body_timeout_s=TIMEOUT_S) as running:
        yield running


def post(path: str, headers: str, body: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n{body}".encode("latin-1")


LAST_REQUEST = b"GET /small HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
CHUNKED = "transfer-encoding: chunked\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "chunk size not hexadecimal": (post("/v1/messages", CHUNKED, "ZZ\r\nabc\r\n"), 400),
    "chunk size overflows": (post("/v1/messages", CHUNKED, "F" * 40 + "\r\nabc\r\n"), 400),
    "chunk size negative": (post("/v1/messages", CHUNKED, "-1\r\nabc\r\n"), 400),
    "chunk longer than its size": (post("/v1/messages", CHUNKED, "1\r\nabcdef\r\n0\r\n\r\n"), 400),
    "chunk line endless": (post("/v1/messages", CHUNKED, "1;" + "x" * 9000), 431),
    "chunks above the limit": (
        post("/v1/messages", CHUNKED, ("2710\r\n" + "x" * 10_000 + "\r\n") * 11),
        413,
    ),
    "length above the limit": (post("/v1/messages", f"content-length: {BODY_MAX + 1}\r\n"), 413),
    "length not a number": (post("/v1/messages", "content-length: abc\r\n"), 400),
    "length negative": (post("/v1/messages", "content-length: -5\r\n"), 400),
    "length endless": (post("/v1/messages", f"content-length: {'9' * 30}\r\n"), 400),
    "lengths in conflict": (
        post("/v1/messages", "content-length: 3\r\ncontent-length: 4\r\n", "abcd"),
        400,
    ),
    "length and chunks": (
        post("/v1/messages", f"content-length: 3\r\n{CHUNKED}", "0\r\n\r\n"),
        400,
    ),
    "transfer coding unknown": (post("/v1/messages", "transfer-encoding: gzip\r\n", "abc"), 501),
    "transfer coding twice": (post("/v1/messages", CHUNKED + CHUNKED, "0\r\n\r\n"), 501),
    "head too long": (post("/v1/messages", f"x-long: {'x' * HEAD_MAX}\r\n"), 431),
    "head endless": (b"GET /v1/messages HTTP/1.1\r\nx-long: " + b"x" * 3 * HEAD_MAX, 431),
    "too many headers": (post("/v1/messages", "a: b\r\n" * 150), 431),
    "header without a colon": (post("/v1/messages", "nocolon\r\n"), 400),
    "header name with a space": (post("/v1/messages", "bad name: x\r\n"), 400),
    "header value with NUL": (post("/v1/messages", "x: a\0b\r\n"), 400),
    "header folded onto nothing": (
        b"POST /v1/messages HTTP/1.1\r\n folded: x\r\nhost: x\r\n\r\n",
        400,
    ),
    "header folded": (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n", 400),
    "bare LF after the request line": (b"POST /v1/messages HTTP/1.1\nhost: x\r\n\r\n", 400),
    "bare LF after a header": (b"POST /v1/messages HTTP/1.1\r\nhost: x\na: b\r\n\r\n", 400),
    "bare LF at the end of the head": (b"POST /v1/messages HTTP/1.1\r\nhost: x\n\n", 400),
    "bare CR in a header": (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n", 400),
    "bare LF after a trailer": (post("/v1/messages", CHUNKED, "0\r\na: b\n\r\n"), 400),
    "bare LF instead of trailers": (post("/v1/messages", CHUNKED, "0\r\n\n"), 400),
    "trailer folded": (post("/v1/messages", CHUNKED, "0\r\na: b\r\n\tc\r\n\r\n"), 400),
    "no host": (b"GET /v1/messages HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /v1/messages HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    "no version": (b"GET /v1/messages\r\n\r\n", 400),
    "version of the future": (b"GET /v1/messages HTTP/3.0\r\nhost: x\r\n\r\n", 505),
    "upgrade to WebSocket": (
        (
            b"GET /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ),
        426,
    ),
    "expectation unknown": (post("/v1/messages", "expect: miracles\r\n"), 417),
    "chunked in HTTP/1.0": (
        b"POST /v1/messages HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
}
GARBAGE = {
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "zeros": bytes(3000),
    "newlines": b"\r\n" * 50,
    "words": b"this is not http\r\n\r\n",
    "only a colon": b":\r\n\r\n",
}


def only_answer(data: bytes) -> Answer:
    answers = parse(data)
    assert len(answers) == 1, data
    return answers[0]


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_request_is_refused_in_the_callers_dialect(server: SampleServer, name: str) -> None:
    data, status = REFUSED[name]
    answer = only_answer(server.send(data))
    assert answer.status == status
    assert answer.headers["request-id"].startswith("req_")
    assert answer.headers["connection"] == "close"
    body: dict[str, Any] = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] in {"invalid_request_error", "request_too_large", "api_error"}
    assert body["request_id"] == answer.headers["request-id"]
    assert server.is_well()


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_gets_a_400_and_a_close(server: SampleServer, name: str) -> None:
    answer = only_answer(server.send(GARBAGE[name]))
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert server.is_well()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_asterisk_is_no_path(server: SampleServer, method: str) -> None:
    assert 400 <= server.ask(method, "*").status < 500


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1/chat/completions", "", "openai"),
        ("/v1/models", "", "openai"),
        ("/v1/models", "anthropic-version: 2023-06-01\r\n", "anthropic"),
        ("/v1/messages", "", "anthropic"),
        ("/v1/jobs", "", "native"),
    ],
)
@pytest.mark.parametrize("broken", ["bad name: x\r\n", CHUNKED], ids=["head", "body"])
def test_refusal_speaks_the_dialect_of_the_path(
    server: SampleServer, path: str, headers: str, dialect: str, broken: str
) -> None:
    answer = only_answer(server.send(post(path, headers + broken, "ZZ\r\n")))
    keys = {
        "openai": {"error"},
        "anthropic": {"type", "error", "request_id"},
        "native": {"type", "title", "status", "detail", "code", "request_id"},
    }
    assert answer.status == 400
    assert set(answer.json()) == keys[dialect]


@pytest.mark.parametrize(
    "data",
    [
        b"GET /small HTT",
        post("/echo", "content-length: 10\r\n", "abc"),
        post("/echo", CHUNKED, "5\r\nab"),
    ],
    ids=["head", "length", "chunked"],
)
def test_input_that_ends_early_is_never_taken_for_whole(server: SampleServer, data: bytes) -> None:
    assert only_answer(server.send(data, half_close=True)).status == 400
    assert server.is_well()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET /small HTTP/1.1\r\nhost: x\r\n", "head_timeout"),
        (post("/echo", "content-length: 10\r\n", "abc"), "body_timeout"),
        (post("/echo", CHUNKED, "5\r\nab"), "body_timeout"),
    ],
    ids=["head", "length", "chunked"],
)
def test_request_that_does_not_come_to_its_end_times_out(
    strict_on_heads: SampleServer, strict_on_bodies: SampleServer, data: bytes, code: str
) -> None:
    server = strict_on_heads if code == "head_timeout" else strict_on_bodies
    answer = only_answer(server.send(data))
    assert answer.status == 408
    assert answer.json()["code"] == code
    assert answer.headers["x-should-retry"] == "true"


def test_slow_dripping_does_not_stretch_the_head_timeout(strict_on_heads: SampleServer) -> None:
    with strict_on_heads.connect() as connection:
        connection.settimeout(TIMEOUT_S / 20)

        def drip() -> bytes:
            connection.sendall(b"x")
            return connection.recv(1000)

        received = wait_until(drip, within_s=PATIENT_S, ignore=TimeoutError)
        assert received.startswith(b"HTTP/1.1 408 ")


def test_reset_uploads_leave_the_server_well(server: SampleServer) -> None:
    for _ in range(20):
        with server.connect() as connection:
            connection.sendall(post("/echo", "content-length: 1000\r\n", "abc"))
    assert server.is_well()


def test_compressed_body_is_refused_and_the_connection_goes_on(server: SampleServer) -> None:
    data = post("/v1/messages", "content-encoding: gzip\r\ncontent-length: 3\r\n", "abc")
    answers = parse(server.send(data + LAST_REQUEST))
    assert [answer.status for answer in answers] == [415, 200]
    assert answers[0].headers["accept-encoding"] == "identity"


def test_large_refused_upload_still_gets_its_answer(server: SampleServer) -> None:
    size = 20 * BODY_MAX
    answer = only_answer(server.send(post("/echo", f"content-length: {size}\r\n", "x" * size)))
    assert answer.status == 413


def test_undecodable_target_is_refused_and_the_connection_goes_on(server: SampleServer) -> None:
    data = b"GET /%ff HTTP/1.1\r\nhost: x\r\n\r\n"
    answers = parse(server.send(data + LAST_REQUEST))
    assert [answer.status for answer in answers] == [400, 200]


def test_framework_port_refuses_what_did_not_pass_the_shield(server: SampleServer) -> None:
    psutil = pytest.importorskip("psutil")
    ports = {
        connection.laddr.port
        for connection in psutil.Process(server.process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    } - {server.port}
    assert len(ports) == 1
    inner = SampleServer.__new__(SampleServer)
    inner.port = ports.pop()
    assert inner.ask("GET", "/echo").status == 403


def test_connections_beyond_the_limit_are_told_so_and_recover() -> None:
    with sample_server(connections_max=3) as server:
        held = [server.connect() for _ in range(3)]
        for connection in held:
            connection.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        answer = server.ask("GET", "/v1/chat/completions")
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "too_many_connections"
        assert answer.headers["retry-after"] == "1"
        for connection in held:
            connection.close()
        wait_until(lambda: server.ask("GET", "/small").status, lambda status: status == 200)


def test_idle_connection_is_closed_without_a_word() -> None:
    with sample_server(idle_timeout_s=1) as server:
        # Stopped meanwhile, so that the server finds connection and request at the same time.
        server.process.send_signal(signal.SIGSTOP)
        connection = server.connect()
        connection.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        server.process.send_signal(signal.SIGCONT)
        with connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
            assert connection.recv(1000) == b""
