"""The memory that a body takes is not more than the budget of bodies counts for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from api.http_server.limits import BODY_COPIES
from tests.support.polling import wait_until
from tests.support.processes.sample_server import SampleServer, parse, read_all, sample_server

MIB = 1024 * 1024
BODY_BYTES = 32 * MIB
PACKET_BYTES = 1460
#: What the process may take beside the copies: the blocks of a body that are on their way.
MARGIN_BYTES = 8 * MIB
#: Bytes from which the allocator returns memory to the system once it is freed. Its own threshold
#: rises while the process runs, so what it keeps depends on the order of the threads.
RETURNED_BYTES_MIN = 128 * 1024


@pytest.fixture(autouse=True)
def _freed_memory_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(RETURNED_BYTES_MIN))


def packets(body: bytes) -> Iterator[bytes]:
    """Yield the body as a network brings it: the allocator may keep the places of small pieces."""
    for start in range(0, len(body), PACKET_BYTES):
        yield body[start : start + PACKET_BYTES]


def send_body(server: SampleServer, target: str, body: bytes) -> None:
    """Send a body at the speed of the server, so that it is not the client that fills memory."""
    head = f"POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    with server.connect() as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        for packet in packets(body):
            connection.sendall(packet)
        assert parse(read_all(connection))[0].status == 200


def peak_bytes(pid: int) -> int:
    """Return the most resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak of a process")
@pytest.mark.parametrize(
    "body",
    [b"a" * BODY_BYTES, "😀".encode() + b"a" * BODY_BYTES, b"\xff" * BODY_BYTES],
    ids=["ascii", "text with one wide character", "bytes"],
)
def test_body_takes_no_more_memory_than_is_counted(body: bytes) -> None:
    with sample_server(
        request_bytes_max=2 * BODY_BYTES, bodies_bytes_max=8 * BODY_BYTES, body_timeout_s=600
    ) as server:
        before = psutil.Process(server.process.pid).memory_info().rss
        send_body(server, "/count", body)
        grown = peak_bytes(server.process.pid) - before
        assert grown < BODY_COPIES * BODY_BYTES + MARGIN_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak of a process")
def test_body_is_held_twice_while_its_handler_runs(tmp_path: Path) -> None:
    until = tmp_path / "until"
    with sample_server(
        request_bytes_max=2 * BODY_BYTES, bodies_bytes_max=8 * BODY_BYTES, body_timeout_s=600
    ) as server:
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        head = f"POST /held?until={until} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        with server.connect() as connection:
            connection.sendall(f"{head}content-length: {BODY_BYTES}\r\n\r\n".encode())
            for packet in packets(b"a" * BODY_BYTES):
                connection.sendall(packet)
            server.next_event("held begun")
            wait_until(
                lambda: process.memory_info().rss - before,
                lambda grown: grown < 2 * BODY_BYTES + MARGIN_BYTES,
            )
            until.touch()
            assert parse(read_all(connection))[0].status == 200
