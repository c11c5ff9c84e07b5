"""The public socket, bound before all else, so that a taken port is reported in one line."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

from ops.exit_codes import ExitCode
from ops.settings.service import ServerSettings

#: Connections that the kernel queues until the server accepts them; it may allow fewer.
BACKLOG: Final = 1024


class ListenError(Exception):
    """The address cannot be listened on; the message is one line for the operator."""


def open_listener(
    host: str, port: int, *, forbidden: Callable[[str], str | None] = lambda _: None
) -> socket.socket:
    """Listen on an address.

    Args:
        host: A name or an address of this machine.
        port: 0 picks a free one.
        forbidden: Returns why an address must not be listened on, ``None`` if it may.

    Raises:
        ListenError: The address is taken, not of this machine, or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    reason = forbidden(str(address[0]))
    if reason is not None:
        raise ListenError(reason)
    listener = socket.socket(family, kind, protocol)
    try:
        # The port of a server that has just ended is free; a port with a listener is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_explain(host, port, error)) from error
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return listener


def open_listener_or_exit(server: ServerSettings) -> socket.socket:
    """Listen at the address of the settings; if that fails, write one line and exit with 78."""
    try:
        return open_listener(server.host, server.port, forbidden=server.why_not_listen)
    except ListenError as error:
        sys.stderr.write(f"semantic: {error}\n")
        raise SystemExit(int(ExitCode.CONFIG)) from error


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {host}:{port}: the port is taken, perhaps by another"
            f" `semantic serve`; `lsof -nP -iTCP:{port} -sTCP:LISTEN` names the process,"
            " SEMANTIC_SERVER__PORT chooses another port"
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot listen on {host}:{port}: {reason}"
