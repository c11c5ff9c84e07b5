"""What does HTTP cost: a request and an event through the shield and Robyn, with empty handlers?

    python -m bench.http_costs [--seconds 8] [--requests 2000]

The server is the sample app of the tests, in a process of its own. CPU is that of this process, by
the clock of the kernel, and hardly depends on other programs; times do, so each row names the load.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import psutil

from bench.experiments.report import print_table
from tests.support.processes.sample_server import read_until, sample_server

STREAMS: Final = 32
EVENTS_PER_S: Final = 50
IDLE_STREAMS: Final = 600
#: Requests beside the idle streams.
BESIDE: Final = 200
#: Requests before the first one that counts.
WARM_UP: Final = 200
_MARK: Final = b"event: tick"

Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Target:
    """A server under test.

    Attributes:
        pid: Of its process.
        port: On loopback.
    """

    pid: int
    port: int

    def connect(self) -> socket.socket:
        """Return a new connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


def row(figure: str, value: str, limit: str = "") -> Row:
    """Return a row with the load of the last minute."""
    return figure, value, limit, f"{psutil.getloadavg()[0]:.1f}"


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """Return a request for a connection that is kept."""
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n{length}\r\n".encode() + body


def times_of(connection: socket.socket, data: bytes, count: int) -> list[float]:
    """Send a request so often, one after the other; return the seconds until each reply."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        connection.sendall(data)
        read_reply(connection)
        taken.append(time.perf_counter() - began)
    return taken


def read_reply(connection: socket.socket) -> None:
    """Read one reply with a ``content-length``."""
    data = read_until(connection, b"\r\n\r\n")
    head, _, rest = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(rest) < length:
        rest += connection.recv(65536)


def requests(target: Target, count: int) -> Iterator[Row]:
    """Time requests to empty handlers."""
    kinds = {
        "GET": request("GET", "/small"),
        "POST of 1 kB": request("POST", "/echo", b"x" * 1000),
        "GET of a path with an id": request("GET", "/v1/jobs/job_1"),
    }
    for name, data in kinds.items():
        with target.connect() as connection:
            times_of(connection, data, WARM_UP)
            before_s = target.cpu_s()
            p50_s = statistics.median(times_of(connection, data, count))
            cpu_s = (target.cpu_s() - before_s) / count
        yield row(f"{name}, p50 ms", f"{p50_s * 1e3:.2f}")
        yield row(f"{name}, CPU µs", f"{cpu_s * 1e6:.0f}")


def events(target: Target, seconds: float) -> Iterator[Row]:
    """Count the CPU of streams that all have an event at their pace."""
    path = f"/ticks?n={int(seconds * EVENTS_PER_S * 2)}&ms={1000 / EVENTS_PER_S:g}"
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(STREAMS):
            connection = stack.enter_context(target.connect())
            connection.sendall(request("GET", path))
            read_until(connection, _MARK)
            selector.register(connection, selectors.EVENT_READ)
        count, before_s, began = 0, target.cpu_s(), time.monotonic()
        while time.monotonic() - began < seconds:
            for key, _ in selector.select(1):
                assert isinstance(key.fileobj, socket.socket)
                count += key.fileobj.recv(65536).count(_MARK)
        took_s, cpu_s = time.monotonic() - began, target.cpu_s() - before_s
    pace = f"{STREAMS} streams, {count / took_s / STREAMS:.0f} events/s each"
    yield row(f"an event at {pace}, CPU µs", f"{cpu_s / count * 1e6:.0f}", "93")
    yield row("the same, share of a core", f"{cpu_s / took_s:.0%}", "20%")


def idle(target: Target) -> Iterator[Row]:
    """Open streams that have one event, and send requests beside them."""
    with ExitStack() as stack:
        held = [stack.enter_context(target.connect()) for _ in range(IDLE_STREAMS)]
        began = time.monotonic()
        for connection in held:
            connection.sendall(request("GET", "/idle"))
        for connection in held:
            read_until(connection, b"event: first")
        first_s = time.monotonic() - began
        post = request("POST", "/echo", b"x" * 1000)
        beside = stack.enter_context(target.connect())
        p50_s = statistics.median(times_of(beside, post, BESIDE))
        process = psutil.Process(target.pid)
        memory_mb, threads = process.memory_info().rss / 1e6, process.num_threads()
        before_s, began = target.cpu_s(), time.monotonic()
        time.sleep(3)
        share = (target.cpu_s() - before_s) / (time.monotonic() - began)
    yield row(f"first events of {IDLE_STREAMS} new streams, s", f"{first_s:.1f}", "each has one")
    yield row("POST of 1 kB beside them, p50 ms", f"{p50_s * 1e3:.2f}", "answers")
    yield row("threads, resident MB beside them", f"{threads}, {memory_mb:.0f}")
    yield row("their share of a core", f"{share:.1%}")


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield all figures."""
    with sample_server() as server:
        target = Target(server.process.pid, server.port)
        yield from requests(target, arguments.requests)
        yield from events(target, arguments.seconds)
        yield from idle(target)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--requests", type=int, default=2000)
    print_table(("figure", ">value", "limit", ">load"), rows(parser.parse_args()))


if __name__ == "__main__":
    main()
