"""What does HTTP cost: a request and an event through the shield and Robyn, with empty handlers?

    python -m bench.http_costs [--rounds 5] [--seconds 5] [--requests 1000]

The server is the sample app of the tests, in a process of its own, and CPU is that of the process.
Other programs add to a figure, or take from it where events that wait go together, so each one is
the median of the rounds, with the least and the most, and names the load.
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
from itertools import chain
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

#: From here on a figure is printed without decimals.
ROUNDED_FROM: Final = 20

Figure = tuple[str, float]


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


def requests(target: Target, count: int) -> Iterator[Figure]:
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
        yield f"{name}, p50 ms", p50_s * 1e3
        yield f"{name}, CPU µs", cpu_s * 1e6


def events(target: Target, seconds: float) -> Iterator[Figure]:
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
    yield f"an event at {STREAMS} streams of {EVENTS_PER_S} events/s, CPU µs", cpu_s / count * 1e6
    yield "the same at the full pace, % of a core", cpu_s / count * STREAMS * EVENTS_PER_S * 100
    yield "events that came late, %", 100 * max(0, 1 - count / took_s / STREAMS / EVENTS_PER_S)


def idle(target: Target) -> Iterator[Figure]:
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
    yield f"first events of {IDLE_STREAMS} new streams, s", first_s
    yield "POST of 1 kB beside them, p50 ms", p50_s * 1e3
    yield "threads beside them", threads
    yield "resident memory beside them, MB", memory_mb
    yield "the idle streams, % of a core", share * 100


def rows(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str, str]]:
    """Yield the figures of all rounds, and the load of the minute before the end."""
    found: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        with sample_server() as server:
            target = Target(server.process.pid, server.port)
            for name, value in chain(
                requests(target, arguments.requests),
                events(target, arguments.seconds),
                idle(target),
            ):
                found.setdefault(name, []).append(value)
    load = f"{psutil.getloadavg()[0]:.0f}"
    for name, values in found.items():
        spread = f"{shown(min(values))} to {shown(max(values))}"
        yield name, shown(statistics.median(values)), spread, load


def shown(value: float) -> str:
    """Return a figure with as many digits as it has meaning."""
    return f"{value:.0f}" if value >= ROUNDED_FROM else f"{value:.2f}"


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    print_table(("figure", ">median", ">least to most", ">load"), rows(parser.parse_args()))


if __name__ == "__main__":
    main()
