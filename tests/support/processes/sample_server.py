"""Starts ``sample_app`` as a process and exchanges raw bytes with it."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.polling import scaled, wait_until

START_MAX_S = 60.0
ANSWER_MAX_S = 60.0
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Answer:
    """One parsed response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class SampleServer:
    """A running sample app; ``next_event`` returns its reports."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port: int = self.next_event("listening", START_MAX_S)["port"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def close(self) -> None:
        """Kill the process and wait until its output is read to the end."""
        self.process.kill()
        self._reader.join()

    def next_event(self, what: str, timeout_s: float = ANSWER_MAX_S) -> dict[str, Any]:
        """Return the next event of that name; earlier events are skipped."""

        def found() -> dict[str, Any] | None:
            with contextlib.suppress(queue.Empty):
                while (event := self._events.get_nowait())["what"] != what:
                    pass
                return event
            return None

        return wait_until(found, within_s=timeout_s, what=f"the event {what!r}")

    def next_event_name(self, timeout_s: float = ANSWER_MAX_S) -> str:
        """Return the name of the next event."""
        return str(self._events.get(timeout=scaled(timeout_s))["what"])

    def discard_events(self) -> None:
        """Drop all events so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()

    def connect(self) -> socket.socket:
        connection = socket.create_connection(
            ("127.0.0.1", self.port), timeout=scaled(ANSWER_MAX_S)
        )
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def send(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Send bytes on a new connection; return all received bytes until it closes."""
        with self.connect() as connection:
            # A server that refuses early may close while bytes are still on their way.
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def ask(self, method: str, target: str, body: bytes = b"", headers: str = "") -> Answer:
        """Make one well-formed request."""
        length = f"content-length: {len(body)}\r\n" if body else ""
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{length}{headers}\r\n"
        )
        answers = parse(self.send(head.encode() + body))
        assert len(answers) == 1
        return answers[0]

    def is_well(self) -> bool:
        """Return whether the process lives and the next request works."""
        return self.process.poll() is None and self.ask("GET", "/small").status == 200


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        piece = connection.recv(65536)
        assert piece, f"closed before {mark!r}: {received!r}"
        received += piece
    return received


def parse(data: bytes) -> list[Answer]:
    """Parse responses with a content-length each, or one that ends with the connection."""
    answers = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])
        }
        length = int(headers.get("content-length", "0" if " 204 " in lines[0] else len(data)))
        answers.append(Answer(int(lines[0].split(" ")[1]), headers, data[:length]))
        data = data[length:]
    return answers


@contextlib.contextmanager
def sample_server(**settings: object) -> Iterator[SampleServer]:
    """Run a sample app with these server settings and limits, and stop it in any case."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.processes.sample_app",
            json.dumps({"port": 0, **settings}),
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            server = SampleServer(process)
        except BaseException:
            process.kill()
            raise
        try:
            yield server
        finally:
            server.close()
