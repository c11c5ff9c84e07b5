"""A webhook receiver on a loopback port, with answers chosen by the test."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.polling import scaled

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a status and headers, sent once ``held`` is set."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    held: threading.Event | None = None


class Receiver:
    """Records requests; ``answer`` chooses replies, ``wait_for`` blocks for requests."""

    def __init__(self, port: int, answer: Callable[[Received], Reply]) -> None:
        self.port = port
        self.answer = answer
        self.received: list[Received] = []
        self._changed = threading.Condition()

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def take(self, one: Received) -> Reply:
        with self._changed:
            self.received.append(one)
            self._changed.notify_all()
        return self.answer(one)

    def wait_for(self, count: int) -> list[Received]:
        """Wait for at least ``count`` requests and return all."""
        with self._changed:
            there = self._changed.wait_for(lambda: len(self.received) >= count, scaled(PATIENCE_S))
            assert there, [one.path for one in self.received]
            return list(self.received)


@contextmanager
def receiver(answer: Callable[[Received], Reply] = lambda _: Reply()) -> Iterator[Receiver]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = running.take(Received(self.path, headers, body))
            if reply.held is not None:
                reply.held.wait(scaled(PATIENCE_S))
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                return  # the sender has had enough

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Receiver(server.server_address[1], answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
