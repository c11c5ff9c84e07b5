"""The trial broker: fakeredis' TCP server inside this process, with four faults corrected.

As shipped, an error reply ends the connection (so that no script can be loaded), small packets are
delayed by 40 ms, pushed messages wait for a poll, and a large reply overruns a non-blocking socket.
Here the thread of a connection sleeps until its peer or its reply queue has data.
"""

from __future__ import annotations

import queue
import select
import socket
import threading
from pathlib import Path
from typing import Any

import redis
from fakeredis import TcpFakeServer
from fakeredis._clients import _tcp_server as upstream

#: Bytes read at once.
READ_BYTES = 65_536
#: The Redis version that is imitated.
VERSION = (7, 0)
_HOST = "127.0.0.1"


class TrialBroker:
    """The server and its thread.

    Args:
        port_file: Keeps the port, so that a restarted broker has the same address.
    """

    def __init__(self, port_file: Path) -> None:
        self._server = _bind(port_file)
        self.port = int(self._server.server_address[1])
        self.url = f"redis://{_HOST}:{self.port}/0"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="trial-broker", daemon=True
        )
        port_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        port_file.write_text(f"{self.port}\n", encoding="ascii")

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def exit_code(self) -> int | None:
        """Return ``None`` while the thread runs, else 1."""
        return None if self._thread.is_alive() else 1

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def stop(self) -> None:
        """Close the server; its data is lost."""
        self._server.shutdown()
        self._server.server_close()


class _ReplyQueue(queue.Queue[Any]):
    """Replies and pushed messages; a byte on ``alarm`` announces each."""

    def __init__(self, alarm: socket.socket) -> None:
        super().__init__()
        self._alarm = alarm

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: ANN401, FBT001, FBT002 - the signature of Queue
        super().put(item, block, timeout)
        try:
            self._alarm.send(b"\0")
        except OSError:
            # Full: the reader has unread bytes already. Closed: there is no reader.
            return


class _Handler(upstream.TCPFakeRequestHandler):  # type: ignore[misc]  # mypy does not follow fakeredis
    """One connection."""

    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.connection.setblocking(True)  # noqa: FBT003 - positional only
        self._alarmed, self._alarm = socket.socketpair()
        self._alarmed.setblocking(False)  # noqa: FBT003 - positional only
        self._alarm.setblocking(False)  # noqa: FBT003 - positional only
        self._peer = self.current_client.get_socket()
        self._peer.responses = _ReplyQueue(self._alarm)

    def handle(self) -> None:
        while True:
            readable, _, _ = select.select([self.connection, self._alarmed], [], [])
            try:
                if self._alarmed in readable:
                    self._alarmed.recv(READ_BYTES)
                    self._reply()
                if self.connection in readable:
                    data = self.connection.recv(READ_BYTES)
                    if not data:
                        return
                    self._peer.sendall(data)
                    self._reply()
            except OSError:  # the peer is gone; ConnectionError is one
                return
            except redis.ConnectionError:  # the peer was killed by another client
                return

    def finish(self) -> None:
        super().finish()
        self._alarmed.close()
        self._alarm.close()

    def _reply(self) -> None:
        parts: list[bytes] = []
        while True:
            try:
                reply = self._peer.responses.get_nowait()
            except (queue.Empty, AttributeError):  # the queue goes with the connection
                break
            encoded = upstream.encode_reply(reply, self.protocol_version)
            if encoded.startswith(b"-"):
                # Lua's errors have many lines, an error reply has one.
                encoded = b" ".join(encoded.split()) + b"\r\n"
            parts.append(encoded)
        if parts:
            self.connection.sendall(b"".join(parts))


def _bind(port_file: Path) -> TcpFakeServer:
    try:
        wanted = int(port_file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        wanted = 0
    try:
        server = TcpFakeServer((_HOST, wanted), server_version=VERSION)
    except OSError:
        if not wanted:
            raise
        server = TcpFakeServer((_HOST, 0), server_version=VERSION)
    server.RequestHandlerClass = _Handler
    server.daemon_threads = True
    return server
