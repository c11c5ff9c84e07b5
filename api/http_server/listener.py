"""The public socket: bound first of all, so that a taken port is told in one line."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

from ops.exit_codes import ExitCode
from ops.exposure import why_not_listen
from ops.settings import ServerSettings

#: Connections that the kernel keeps until the gate accepts them; it may allow fewer.
BACKLOG: Final = 1024


class ListenError(Exception):
    """The address cannot be listened on; the message is one line for the operator."""


def _anywhere(address: str) -> str | None:
    del address
    return None


def open_listener(
    host: str, port: int, *, forbidden: Callable[[str], str | None] = _anywhere
) -> socket.socket:
    """Listen on an address.

    Args:
        host: A name or an address of this machine.
        port: 0 picks a free one.
        forbidden: Says why an address must not be listened on, if so.

    Raises:
        ListenError: The address is taken, not ours, or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        message = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ListenError(message) from error
    reason = forbidden(str(address[0]))
    if reason is not None:
        raise ListenError(reason)
    listener = socket.socket(family, kind, protocol)
    try:
        # A port of a server that has just ended is free; one that is listened on is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_explain(host, port, error)) from error
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return listener


def open_listener_or_exit(server: ServerSettings) -> socket.socket:
    """Listen where the settings say, or say in one line on stderr why not and exit with 78."""
    try:
        return open_listener(
            server.host, server.port, forbidden=lambda address: why_not_listen(server, address)
        )
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
