"""What Robyn 0.88 cannot take by itself: each test shows a defect that the shield covers.

A test that fails after an update of Robyn is good news. Its docstring says what may go then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.support.polling import pause, scaled, unscaled, wait_until
from tests.support.processes.sample_server import (
    ANSWER_MAX_S,
    ROOT,
    Answer,
    parse,
    read_all,
    read_until,
)

#: Longer than any answer of a server that notices; the tests wait so long for nothing to happen.
NOTHING_S = 2.0
NOTHING = "nothing may happen in this time"
LARGE_BODY_BYTES = 64 * 1024 * 1024
#: Threads on which the one worker of Robyn waits for streams, divided by the cores.
WAITING_THREADS = 512


class BareRobyn:
    """A running Robyn without a shield."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self._lines.get(timeout=scaled(ANSWER_MAX_S)))
        wait_until(self._listens, what="Robyn listens")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def _listens(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError), self.connect():
            return True
        return False

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=scaled(ANSWER_MAX_S))

    def send(self, data: bytes) -> bytes:
        """Send bytes; return what came once nothing more does."""
        with self.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def ask(self, method: str, target: str, body: bytes = b"", headers: bytes = b"") -> Answer:
        head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode()
        length = b"content-length: %d\r\n\r\n" % len(body)
        with self.connect() as connection:
            connection.sendall(head + headers + length + body)
            (answer,) = parse(read_all(connection))
        return answer

    def seen(self, target: str, headers: bytes = b"") -> dict[str, Any]:
        """Return what the handler saw of a request."""
        seen: dict[str, Any] = json.loads(self.ask("GET", target, headers=headers).body)
        return seen

    def next_line(self) -> str:
        return self._lines.get(timeout=scaled(ANSWER_MAX_S))

    def lines(self) -> list[str]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._lines.get_nowait())
        return found


@pytest.fixture
def robyn() -> Iterator[BareRobyn]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.bare_robyn"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield BareRobyn(process)
        finally:
            process.kill()


@pytest.mark.parametrize("size", [b"ZZ", b"F" * 40])
def test_malformed_chunk_ends_the_process(robyn: BareRobyn, size: bytes) -> None:
    """When it does not, ``Connection`` may hand chunks on as they come."""
    robyn.send(
        b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%s\r\nabc\r\n" % size
    )
    assert robyn.process.wait(scaled(ANSWER_MAX_S)) == -signal.SIGABRT


def test_body_has_no_limit(robyn: BareRobyn) -> None:
    """When it has, per route, ``RequestHead.body_limit`` may go; ``BodyShare`` may not."""
    assert robyn.ask("POST", "/echo", b"x" * LARGE_BODY_BYTES).status == 200


def test_body_cut_short_is_taken_for_whole(robyn: BareRobyn) -> None:
    """When it is refused, the shield need not hold a body until it is whole."""
    answer = robyn.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
    assert json.loads(parse(answer)[0].body)["body_bytes"] == 3


def test_length_and_chunks_together_are_taken(robyn: BareRobyn) -> None:
    """When they are refused, the check in ``RequestHead`` may go."""
    answer = robyn.send(
        b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n"
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    assert parse(answer)[0].status == 200


def test_request_without_a_host_is_taken(robyn: BareRobyn) -> None:
    """When it is refused, h11 is no longer needed for it."""
    assert parse(robyn.send(b"GET /echo HTTP/1.1\r\n\r\n"))[0].status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"GET /echo HTTP/1.1\r\nhost: x\r\n",
        b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc",
        b"",
    ],
    ids=["head", "body", "nothing"],
)
def test_slow_request_is_waited_for(robyn: BareRobyn, data: bytes) -> None:
    """When heads, bodies and idle connections end, the timers of ``Connection`` may go."""
    with robyn.connect() as connection:
        connection.sendall(data)
        connection.settimeout(unscaled(NOTHING_S, reason=NOTHING))
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_client_gone_from_a_waiting_handler_is_not_known(robyn: BareRobyn) -> None:
    """When the handler is cancelled, ``Exchange.gone`` is not needed for whole replies."""
    with robyn.connect() as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert robyn.next_line() == "slow begun"
    pause(NOTHING_S, reason=NOTHING)
    assert robyn.lines() == []


def test_client_gone_from_an_idle_stream_is_not_known(robyn: BareRobyn) -> None:
    """When the source is closed, ``Exchange.leave`` need not cancel streams."""
    with robyn.connect() as connection:
        connection.sendall(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"first")
    pause(NOTHING_S, reason=NOTHING)
    assert robyn.lines() == []


def test_idle_streams_starve_the_next_one(robyn: BareRobyn) -> None:
    """When they do not, ``_workers`` and ``TURN_S`` may go."""
    held = []
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        for _ in range(WAITING_THREADS // cores):
            held.append(stack.enter_context(robyn.connect()))
            held[-1].sendall(b"GET /waiting HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(
            lambda: psutil.Process(robyn.process.pid).num_threads() >= WAITING_THREADS // cores,
            what="all threads wait",
        )
        last = stack.enter_context(robyn.connect())
        last.settimeout(unscaled(NOTHING_S, reason=NOTHING))
        last.sendall(b"GET /waiting HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(last, b"\r\n\r\n")
        with pytest.raises(TimeoutError):
            last.recv(1)


def test_stream_that_fails_looks_whole(robyn: BareRobyn) -> None:
    """When its last chunk is missing, ``StreamDelivery`` need not cut streams without events."""
    with robyn.connect() as connection:
        connection.sendall(b"GET /fails HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_until(connection, b"0\r\n\r\n").count(b"event: ") == 1


def test_old_client_gets_chunks_all_the_same(robyn: BareRobyn) -> None:
    """When it does not, ``StreamPipe.passed`` need not return pieces."""
    with robyn.connect() as connection:
        connection.sendall(b"GET /fails HTTP/1.0\r\nhost: x\r\n\r\n")
        assert b"transfer-encoding: chunked" in read_until(connection, b"first")


def test_process_ends_neither_by_one_signal_nor_with_its_streams(robyn: BareRobyn) -> None:
    """When SIGTERM ends it after its replies, the drain of ``api.framework.lifecycle`` may go."""
    with robyn.connect() as connection:
        connection.sendall(b"GET /waiting HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"first")
        robyn.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            robyn.process.wait(unscaled(NOTHING_S, reason=NOTHING))
    with pytest.raises(subprocess.TimeoutExpired):
        robyn.process.wait(unscaled(NOTHING_S, reason=NOTHING))


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("HEAD", "/echo", 404),
        ("OPTIONS", "/echo", 404),
        ("DELETE", "/echo", 404),
        ("BREW", "/echo", 405),
        ("OPTIONS", "*", 404),
    ],
)
def test_method_without_a_route_names_no_other(
    robyn: BareRobyn, method: str, target: str, status: int
) -> None:
    """When these have ``allow``, the routes for the rest in ``build_app`` may go."""
    answer = robyn.ask(method, target)
    assert answer.status == status
    assert "allow" not in answer.headers


def test_path_and_query_are_not_decoded(robyn: BareRobyn) -> None:
    """When they are, ``_read`` must not decode them again."""
    seen = robyn.seen("/named/a%20b?x%20y=c%2Bd")
    assert seen["params"] == {"name": "a%20b"}
    assert seen["query"] == {"x%20y": ["c%2Bd"]}


def test_header_beyond_ascii_is_dropped(robyn: BareRobyn) -> None:
    """When it is not, ``ENCODED_HEADER`` may go."""
    assert "x-name" not in robyn.seen("/echo", b"x-name: \xe4\r\n")["headers"]


def test_body_of_a_form_is_taken_apart(robyn: BareRobyn) -> None:
    """When the handler gets its bytes, ``RequestHead.forwarded`` need not hide a form."""
    form = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'
    headers = b"content-type: multipart/form-data; boundary=x\r\n"
    answer = robyn.ask("POST", "/echo", form, headers)
    assert answer.json()["body_bytes"] < len(form)
    plain = robyn.ask("POST", "/echo", form, b"content-type: application/x-www-form-urlencoded\r\n")
    assert plain.json()["body_bytes"] == len(form)


def test_more_than_96_header_fields_are_refused_without_a_word(robyn: BareRobyn) -> None:
    """When they are taken, ``ServerLimits.headers_max`` may be larger."""
    answer = robyn.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 100 + b"\r\n")
    assert parse(answer)[0].status in {400, 431}


def test_head_of_128_kib_ends_the_connection(robyn: BareRobyn) -> None:
    """When it has a reply, ``ServerLimits.robyn_head_bytes_max`` may go."""
    with robyn.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /echo HTTP/1.1\r\nhost: x\r\na: " + b"b" * 140_000)
        assert not read_all(connection).startswith(b"HTTP/1.1 2")


def test_taken_port_is_shared_without_a_word(robyn: BareRobyn) -> None:
    """When it is refused, the reservation of ``serve`` may go."""
    with socket.socket() as second:
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        second.bind(("127.0.0.1", robyn.port))
        second.listen()
