"""A client that leaves is known at once, whatever its request is doing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.polling import now_s, pause, wait_until
from tests.support.processes.sample_server import SampleServer, read_until, sample_server

#: Requests asked one after the other once a client has left: on an idle machine they take a tenth
#: of the 50 ms that the project allows, and on any machine a server that looked for lost clients
#: now and then, or only when it writes, would answer them first.
REQUESTS_MEANWHILE = 10


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    with sample_server() as running:
        yield running


def ask(server: SampleServer, target: str) -> socket.socket:
    server.discard_events()
    connection = server.connect()
    connection.sendall(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return connection


def close_with_fin(connection: socket.socket) -> None:
    connection.close()


def close_with_reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close_sending_side(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


LEAVING = [close_with_fin, close_with_reset, close_sending_side]


@pytest.mark.parametrize("leave", LEAVING)
def test_client_gone_from_an_idle_stream_is_known(server: SampleServer, leave: object) -> None:
    connection = ask(server, "/idle")
    read_until(connection, b"first")
    check(server, connection, leave, "idle closed")


@pytest.mark.parametrize("leave", LEAVING)
def test_client_gone_before_the_first_event_is_known(server: SampleServer, leave: object) -> None:
    connection = ask(server, "/silent")
    read_until(connection, b"\r\n\r\n")
    check(server, connection, leave, "silent closed")


@pytest.mark.parametrize("leave", LEAVING)
def test_client_gone_from_a_waiting_handler_is_known(server: SampleServer, leave: object) -> None:
    connection = ask(server, "/slow")
    server.next_event("slow begun")
    check(server, connection, leave, "slow over")


def test_client_gone_from_a_fast_stream_is_known(server: SampleServer) -> None:
    connection = ask(server, "/endless")
    connection.recv(1_000_000)
    close_with_reset(connection)
    assert_known_at_once(server, "endless closed")


def test_client_gone_from_a_stream_it_never_read_is_known(server: SampleServer) -> None:
    connection = ask(server, "/endless")
    wait_until_backed_up(connection)
    close_with_reset(connection)
    assert_known_at_once(server, "endless closed")


def test_many_clients_gone_at_once_are_all_known(server: SampleServer) -> None:
    connections = []
    for _ in range(50):
        connection = server.connect()
        connection.sendall(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"first")
        connections.append(connection)
    server.discard_events()
    for connection in connections:
        connection.close()
    for _ in connections:
        assert server.next_event("idle closed")["gone"]
    assert server.is_well()


def test_half_closed_client_still_gets_a_whole_answer(server: SampleServer) -> None:
    data = b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n"
    assert server.send(data, half_close=True).startswith(b"HTTP/1.1 200 ")


def check(server: SampleServer, connection: socket.socket, leave: object, what: str) -> None:
    assert callable(leave)
    leave(connection)
    assert assert_known_at_once(server, what)["gone"]
    connection.close()


def assert_known_at_once(server: SampleServer, what: str) -> dict[str, Any]:
    """Assert that the server knew before it had answered a few requests that came later.

    Its event loop gives each of its sockets a turn, so this depends on no clock's speed.
    """
    for _ in range(REQUESTS_MEANWHILE):
        assert server.ask("GET", "/small").status == 200
    answered = now_s()
    noticed = server.next_event(what)
    assert noticed["at"] < answered
    return noticed


def wait_until_backed_up(connection: socket.socket) -> None:
    """Wait until the server has filled what the kernel holds for this client."""

    def came() -> int:
        before = len(connection.recv(1 << 24, socket.MSG_PEEK))
        pause(0.05, reason="the kernel does not report that a buffer has stopped growing")
        return len(connection.recv(1 << 24, socket.MSG_PEEK)) - before

    wait_until(came, lambda count: count == 0)
