"""The process ends as it is asked to, and nobody is left without a last word."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.polling import scaled, wait_until
from tests.support.processes.sample_server import SampleServer, read_all, read_until, sample_server

DRAIN_S = 1.0
#: For a busy machine, on top of what the drain allows.
MARGIN_S = 60.0
#: Much longer than any test waits: what ends nevertheless has not waited for the drain.
LONG_DRAIN_S = 600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_streams_with_their_last_event(number: signal.Signals) -> None:
    with sample_server(drain_s=DRAIN_S) as server, server.connect() as idle:
        idle.sendall(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(idle, b"first")
        with server.connect() as silent:
            silent.sendall(b"GET /silent HTTP/1.1\r\nhost: x\r\n\r\n")
            read_until(silent, b"\r\n\r\n")
            server.process.send_signal(number)
            for connection in (idle, silent):
                received = read_all(connection)
                assert b"event: last\n" in received
                assert received.endswith(b"\r\n0\r\n\r\n")
        assert server.process.wait(scaled(DRAIN_S + MARGIN_S)) == 0
        server.next_event("stopped")


def test_idle_server_ends_at_once() -> None:
    with sample_server(drain_s=LONG_DRAIN_S) as server, server.connect() as kept:
        kept.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        assert kept.recv(1000).startswith(b"HTTP/1.1 200 ")
        server.process.send_signal(signal.SIGTERM)
        assert kept.recv(1000) == b""
        assert server.process.wait(scaled(MARGIN_S)) == 0
        server.next_event("stopped")


def test_answer_that_is_nearly_done_is_finished(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with sample_server(drain_s=LONG_DRAIN_S) as server, server.connect() as connection:
        connection.sendall(f"GET /held?until={done} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        server.next_event("held begun")
        server.process.send_signal(signal.SIGTERM)
        wait_until_draining(server)
        done.touch()
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in answer
        assert server.next_event("held over")["ending"] is False
        assert server.process.wait(scaled(MARGIN_S)) == 0


def test_stream_that_does_not_end_is_cut_when_the_time_is_over() -> None:
    with sample_server(drain_s=DRAIN_S) as server, server.connect() as connection:
        connection.sendall(b"GET /stubborn HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"first")
        server.process.send_signal(signal.SIGTERM)
        assert not read_all(connection).endswith(b"0\r\n\r\n")
        assert server.process.wait(scaled(DRAIN_S + MARGIN_S)) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_second_signal_ends_at_once(number: signal.Signals, code: int) -> None:
    with sample_server(drain_s=LONG_DRAIN_S) as server, server.connect() as connection:
        connection.sendall(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"first")
        server.process.send_signal(number)
        wait_until_draining(server)
        server.process.send_signal(number)
        assert server.process.wait(scaled(MARGIN_S)) == code


@pytest.mark.parametrize("path", ["/small", "/v1/messages"])
def test_new_client_is_answered_503_until_the_drain_ends(path: str) -> None:
    with sample_server(drain_s=LONG_DRAIN_S) as server, server.connect() as connection:
        connection.sendall(b"GET /ticks?n=1000000&ms=5 HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"tick")
        server.process.send_signal(signal.SIGTERM)
        wait_until_draining(server)
        answer = ask(server, path)
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 503 ")
        assert b"\r\nretry-after: 1" in head
        assert b"\r\nconnection: close" in head
        assert b"the service is stopping" in answer
        assert not ask(server, "/health/live").startswith(b"HTTP/1.1 503 ")
        assert b"tick" in connection.recv(65536)


def ask(server: SampleServer, path: str) -> bytes:
    with server.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        return read_all(connection)


def wait_until_draining(server: SampleServer) -> None:
    wait_until(lambda: ask(server, "/small"), lambda answer: answer.startswith(b"HTTP/1.1 503 "))
