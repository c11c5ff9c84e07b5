"""Sends one command to a private broker, without the client library.

The keeper of the broker sends a PING and nothing else for as long as it runs; the library takes
ten times as long to import as all of its own modules.
"""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import unquote, urlsplit

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
        words: The command and its arguments.

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
