"""The address of the private broker: its socket, the file that publishes its URL, and a probe."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from domain.errors import QueueUnavailable
from ops.data_dir.permissions import replace_file
from ops.settings.settings import Settings

#: Time limit of the connection and of the reply, in seconds.
PROBE_S: Final = 2.0
_PORT: Final = 6379
_LINE_BYTES_MAX: Final = 512


def answers(url: str) -> bool:
    """Return whether a server at ``url`` answers PING; its demand for a password is an answer."""
    try:
        return send(url, "PING").startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def send(url: str, *words: str) -> bytes:
    """Send one command; return the first line of the reply, empty where there is none.

    Args:
        url: ``unix://PATH`` or ``redis://HOST:PORT``.

    Raises:
        OSError: The server cannot be reached, or closed the connection with an error.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = unquote(parts.path)
    else:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        address = (parts.hostname or "", parts.port or _PORT)
    with connection:
        connection.settimeout(PROBE_S)
        connection.connect(address)
        arguments = (word.encode() for word in words)
        lines = b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments)
        connection.sendall(b"*%d\r\n%b" % (len(words), lines))
        with connection.makefile("rb") as reply:
            return reply.readline(_LINE_BYTES_MAX)


#: Longest path of a unix socket: macOS has room for 104 bytes with the final zero, Linux for 108.
SOCKET_PATH_BYTES_MAX = 103
SOCKET_NAME = "redis.sock"
URL_FILE = "broker.url"
#: How long a process waits for its broker, in seconds.
BROKER_WAIT_S = 20.0
_POLL_S = 0.05


def socket_path(settings: Settings) -> Path:
    """Return the socket path of the private redis-server.

    The socket lies in the data directory. Where that path is too long for a socket, it lies in a
    directory of this user below the system's temporary directory.

    Raises:
        PermissionError: That directory exists and belongs to another user.
    """
    wanted = settings.broker_dir / SOCKET_NAME
    if _fits(wanted):
        return wanted
    name = "semantic-" + hashlib.sha256(os.fsencode(settings.broker_dir)).hexdigest()[:16]
    choices = (Path(base) / name / SOCKET_NAME for base in (tempfile.gettempdir(), "/tmp"))  # noqa: S108 - owner and mode are checked
    short = next(path for path in choices if _fits(path))
    _own_directory(short.parent)
    return short


def url_of_socket(path: Path) -> str:
    """Return the URL of a unix socket."""
    return "unix://" + quote(str(path))


def is_private(settings: Settings) -> bool:
    """Return whether the broker is the service's own; its parts get the URL of its socket."""
    return settings.redis.url in {None, url_of_socket(socket_path(settings))}


def write_url(settings: Settings, url: str) -> None:
    """Publish the URL of the broker to the other processes, atomically."""
    replace_file(settings.data_dir / URL_FILE, url + "\n")


def forget_url(settings: Settings) -> None:
    """Withdraw the URL of the broker."""
    (settings.data_dir / URL_FILE).unlink(missing_ok=True)


def resolve_broker_url(settings: Settings, *, wait_s: float = BROKER_WAIT_S) -> str:
    """Return the URL of the broker, waiting for the private one to answer.

    Args:
        settings: ``redis.url`` wins and is not waited for.

    Raises:
        QueueUnavailable: It did not answer in time.
    """
    if settings.redis.url:
        return settings.redis.url
    give_up_at = time.monotonic() + wait_s
    while True:
        url = read_url(settings)
        if url and answers(url):
            return url
        if time.monotonic() >= give_up_at:
            message = f"no broker answered within {wait_s:.0f} s at {url or 'any address'}"
            raise QueueUnavailable(message)
        time.sleep(_POLL_S)


def read_url(settings: Settings) -> str:
    """Return the address that the broker published; empty without one."""
    try:
        return (settings.data_dir / URL_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def _own_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{directory} must be a directory that only this user can enter")
