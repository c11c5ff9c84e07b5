"""Streams: many at once, slow readers, and what follows on the same connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import psutil
import pytest

from tests.support.polling import pause, wait_until
from tests.support.processes.sample_server import (
    SampleServer,
    parse,
    read_all,
    read_until,
    sample_server,
)

IDLE_STREAMS = 600
#: More than kernel and server buffer together, so that the server has to wait for the reader.
LONG_ANSWER_MB = 32
RSS_GROWTH_MAX_BYTES = 24 * 1024 * 1024
#: The kernel counts hundredths of a second, and threads that wait use some.
STILL_CPU_S = 0.02


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    with sample_server() as running:
        yield running


def get(connection: socket.socket, target: str, version: str = "1.1") -> None:
    connection.sendall(f"GET {target} HTTP/{version}\r\nhost: x\r\n\r\n".encode())


def dechunk(data: bytes) -> bytes:
    chunks: list[bytes] = []
    at = 0
    while True:
        line_end = data.index(b"\r\n", at)
        length = int(data[at:line_end], 16)
        if not length:
            return b"".join(chunks)
        at = line_end + 2
        chunks.append(data[at : at + length])
        at += length + 2


def test_idle_streams_do_not_starve_the_next_one(server: SampleServer) -> None:
    held = []
    try:
        for _ in range(IDLE_STREAMS):
            held.append(server.connect())
            get(held[-1], "/idle")
        for connection in held:
            read_until(connection, b"event: first")
        with server.connect() as one_more:
            get(one_more, "/idle")
            read_until(one_more, b"event: first")
        assert server.ask("POST", "/echo", b"beside them").json()["body"] == "beside them"
    finally:
        for connection in held:
            connection.close()


def test_reader_that_pauses_then_resumes_loses_nothing(server: SampleServer) -> None:
    process = psutil.Process(server.process.pid)
    with server.connect() as connection:
        before = process.memory_info().rss
        get(connection, f"/endless?mb={LONG_ANSWER_MB}")
        wait_until_still(process)
        assert server.is_well()
        assert process.memory_info().rss - before < RSS_GROWTH_MAX_BYTES
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = connection.recv(1 << 20)
            assert piece
            received += piece
    head, _, chunked = bytes(received).partition(b"\r\n\r\n")
    assert b"chunked" in head
    numbers = [int(line) for line in dechunk(chunked).splitlines()]
    assert numbers == list(range(LONG_ANSWER_MB * 1000))


def test_endless_answer_without_a_reader_stays_small(server: SampleServer) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    held = [server.connect() for _ in range(8)]
    for connection in held:
        get(connection, "/endless")
    wait_until_still(process)
    assert process.memory_info().rss - before < RSS_GROWTH_MAX_BYTES
    assert server.is_well()
    for connection in held:
        connection.close()


def test_fast_stream_leaves_others_their_turn(server: SampleServer) -> None:
    with server.connect() as greedy:
        get(greedy, "/endless")
        for _ in range(20):
            assert greedy.recv(1 << 20)
            assert server.ask("GET", "/small").status == 200


def test_connection_is_used_again_after_a_stream(server: SampleServer) -> None:
    with server.connect() as connection:
        for _ in range(3):
            get(connection, "/ticks?n=3")
            received = read_until(connection, b"\r\n0\r\n\r\n")
            body = dechunk(received.partition(b"\r\n\r\n")[2])
            assert body.count(b"event: tick") == 3
        get(connection, "/small")
        assert parse(connection.recv(10_000))[0].status == 200


def test_http_1_0_stream_ends_with_the_connection(server: SampleServer) -> None:
    with server.connect() as connection:
        get(connection, "/ticks?n=3", version="1.0")
        answer = parse(read_all(connection))[0]
    assert "transfer-encoding" not in answer.headers
    assert answer.body.count(b"event: tick") == 3
    assert answer.body.startswith(b"event: ")


def test_head_of_a_stream_goes_out_before_its_first_event(server: SampleServer) -> None:
    with server.connect() as connection:
        get(connection, "/silent")
        head = read_until(connection, b"\r\n\r\n")
    assert b"content-type: text/event-stream\r\n" in head
    assert b"request-id: req_" in head


def test_source_that_fails_before_its_first_event_says_so(server: SampleServer) -> None:
    with server.connect() as connection:
        get(connection, "/breaks-first")
        received = read_until(connection, b"\r\n0\r\n\r\n")
    body = dechunk(received.partition(b"\r\n\r\n")[2])
    assert body.startswith(b"event: error\ndata: {")
    assert b'"code":"engine_failure"' in body


def test_source_that_fails_later_tells_no_detail(server: SampleServer) -> None:
    with server.connect() as connection:
        get(connection, "/breaks-later")
        received = read_until(connection, b"\r\n0\r\n\r\n")
    body = dechunk(received.partition(b"\r\n\r\n")[2])
    assert [line for line in body.splitlines() if line.startswith(b"event")] == [
        b"event: first",
        b"event: error",
    ]
    assert b"secret" not in body


def test_broken_answer_without_words_for_it_is_not_taken_for_whole(server: SampleServer) -> None:
    with server.connect() as connection:
        get(connection, "/breaks-later?type=text/plain")
        assert not read_all(connection).endswith(b"0\r\n\r\n")
    assert server.is_well()


def wait_until_still(process: psutil.Process) -> None:
    """Wait until the process uses next to no CPU: its sources wait for their readers.

    A process that only gets no turn looks the same. That is no harm: what is asserted afterwards
    is a limit, which holds at every moment.
    """

    def used_s() -> float:
        before = sum(process.cpu_times()[:2])
        pause(0.3, reason="the kernel counts the CPU time of a stretch of time")
        return sum(process.cpu_times()[:2]) - before

    wait_until(used_s, lambda seconds: seconds <= STILL_CPU_S)
