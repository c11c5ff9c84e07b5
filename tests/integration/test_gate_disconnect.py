"""A client that leaves is known at once, whatever its request is doing."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.support.sample_server import SampleServer, read_until, sample_server

#: The limit that the project states for noticing a lost client.
NOTICE_MAX_S = 0.050


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    with sample_server() as running:
        yield running


def ask(server: SampleServer, target: str) -> socket.socket:
    server.forget()
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
    server.told("slow begun")
    check(server, connection, leave, "slow over")


def test_client_gone_from_a_fast_stream_is_known(server: SampleServer) -> None:
    connection = ask(server, "/endless")
    connection.recv(1_000_000)
    left = time.monotonic()
    close_with_reset(connection)
    assert server.told("endless closed")["at"] - left < NOTICE_MAX_S


def test_client_gone_from_a_stream_it_never_read_is_known(server: SampleServer) -> None:
    connection = ask(server, "/endless")
    wait_until_backed_up(connection)
    left = time.monotonic()
    close_with_reset(connection)
    assert server.told("endless closed")["at"] - left < NOTICE_MAX_S


def test_many_clients_gone_at_once_are_all_known(server: SampleServer) -> None:
    connections = []
    for _ in range(50):
        connection = server.connect()
        connection.sendall(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"first")
        connections.append(connection)
    server.forget()
    for connection in connections:
        connection.close()
    for _ in connections:
        assert server.told("idle closed")["gone"]
    assert server.is_well()


def test_half_closed_client_still_gets_a_whole_answer(server: SampleServer) -> None:
    data = b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n"
    assert server.send(data, half_close=True).startswith(b"HTTP/1.1 200 ")


def check(server: SampleServer, connection: socket.socket, leave: object, what: str) -> None:
    assert callable(leave)
    left = time.monotonic()
    leave(connection)
    noticed = server.told(what)
    assert noticed["gone"]
    assert noticed["at"] - left < NOTICE_MAX_S
    connection.close()


def wait_until_backed_up(connection: socket.socket) -> None:
    """Wait until the server has filled what the kernel holds for this client."""
    before = -1
    while (now := len(connection.recv(1 << 24, socket.MSG_PEEK))) != before:
        before = now
        time.sleep(0.05)  # the kernel tells nobody that a buffer has stopped growing
