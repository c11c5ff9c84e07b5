"""The doors of a running gate: what is refused is refused before its body and its handler."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import psutil
import pytest

from tests.support.polling import scaled
from tests.support.processes.sample_server import (
    ANSWER_MAX_S,
    SampleServer,
    parse,
    read_all,
    sample_server,
)

KEY = "correct-horse-battery-staple"
PAGE = "https://app.example"


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    keys = [f"laptop={KEY}", "phone=another-key-of-the-tests"]
    # Of four connections one key has two.
    with sample_server(api_keys=keys, cors_origins=[PAGE], connections_max=4) as running:
        yield running


def test_the_refusal_speaks_the_caller_s_dialect_and_asks_for_no_retry(
    server: SampleServer,
) -> None:
    claude = server.ask("POST", "/v1/messages?beta=true", b"{}")
    assert (claude.status, claude.headers["x-should-retry"]) == (401, "false")
    assert claude.headers["www-authenticate"] == 'Bearer realm="semantic"'
    assert claude.json()["type"] == "error"
    assert claude.json()["error"]["type"] == "authentication_error"
    assert "x-api-key" in claude.json()["error"]["message"]
    assert claude.json()["request_id"] == claude.headers["request-id"]
    openai = server.ask("POST", "/v1/chat/completions", b"{}", "authorization: Bearer sk-wrong\r\n")
    assert openai.status == 401
    assert openai.headers["www-authenticate"] == 'Bearer realm="semantic", error="invalid_token"'
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert openai.json()["error"]["type"] == "authentication_error"
    native = server.ask("GET", "/echo")
    assert native.status == 401
    assert (native.json()["title"], native.json()["status"]) == ("Not authenticated", 401)
    assert native.headers["content-type"] == "application/problem+json"
    assert native.json()["code"] == "invalid_api_key"


def test_with_a_key_everything_is_as_it_was(server: SampleServer) -> None:
    for header in (f"x-api-key: {KEY}\r\n", f"authorization: Bearer {KEY}\r\n"):
        answer = server.ask("POST", "/v1/messages", b"hello", header)
        assert answer.status == 200
        assert answer.json()["body"] == "hello"


def test_who_is_refused_sends_no_body(server: SampleServer) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        (answer,) = parse(read_all(connection))
    assert answer.status == 401


def test_a_page_may_read_what_it_gets_even_a_refusal(server: SampleServer) -> None:
    page = f"origin: {PAGE}\r\n"
    refused = server.ask("GET", "/echo", headers=page)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE)
    given = server.ask("GET", "/echo", headers=f"{page}x-api-key: {KEY}\r\n")
    assert (given.status, given.headers["access-control-allow-origin"]) == (200, PAGE)
    failed = server.ask("GET", "/failing", headers=f"{page}x-api-key: {KEY}\r\n")
    assert (failed.status, failed.headers["access-control-allow-origin"]) == (500, PAGE)
    asked = server.ask(
        "OPTIONS", "/v1/messages", headers=f"{page}access-control-request-method: POST\r\n"
    )
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, PAGE)


def test_a_stranger_s_form_reaches_no_handler(server: SampleServer) -> None:
    server.discard_events()
    answer = server.ask(
        "GET",
        "/slow",
        headers=f"origin: https://evil.example\r\nx-api-key: {KEY}\r\ncontent-type: text/plain\r\n",
    )
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers
    assert server.ask("GET", "/slow?s=0", headers=f"x-api-key: {KEY}\r\n").status == 200
    # All that the app tells is of the second request: the handler never saw the first.
    assert [server.next_event_name(), server.next_event_name()] == ["slow begun", "slow over"]


def test_a_place_is_free_again_when_the_client_leaves(server: SampleServer) -> None:
    head = f"GET /idle HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\n\r\n".encode()
    with server.connect() as one, server.connect() as two:
        for connection in (one, two):
            connection.sendall(head)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        third = server.ask("GET", "/echo", headers=f"x-api-key: {KEY}\r\n")
        assert (third.status, third.headers["x-should-retry"]) == (429, "true")
        assert int(third.headers["retry-after"]) >= 1
    for _ in range(1000):
        if server.ask("GET", "/echo", headers=f"x-api-key: {KEY}\r\n").status == 200:
            return
    raise AssertionError("the places were never free again")


def test_the_port_behind_the_shield_takes_no_client(server: SampleServer) -> None:
    """Robyn's own loopback port is open to other users of the machine, and of no use to them."""
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.Process(server.process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    (inner,) = {port for _, port in listening} - {server.port}
    server.discard_events()
    for extra in (
        "",
        "x-semantic-router: guess\r\n",
        f"x-api-key: {KEY}\r\n",
        "x-semantic-router: \r\n",
    ):
        for path in ("/slow?s=0", "/slow"):
            head = f"GET {path} HTTP/1.1\r\nhost: gate\r\nconnection: close\r\n{extra}\r\n"
            with socket.create_connection(
                ("127.0.0.1", inner), timeout=scaled(ANSWER_MAX_S)
            ) as line:
                line.sendall(head.encode())
                (answer,) = parse(read_all(line))
            assert (answer.status, answer.body) == (403, b"")
    assert server.ask("GET", "/slow?s=0", headers=f"x-api-key: {KEY}\r\n").status == 200
    assert [server.next_event_name(), server.next_event_name()] == ["slow begun", "slow over"]
