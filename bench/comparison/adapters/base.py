"""The harness's description of a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one server runs.

    Attributes:
        python: Interpreter of the environment that has the server.
        model: Directory of the model.
        data_dir: The only directory that it may write to; kept across restarts.
        port: Loopback port to listen on.
    """

    python: Path
    model: Path
    data_dir: Path
    port: int

    def script(self, name: str) -> str:
        """Return a console script of the same environment."""
        return str(self.python.with_name(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How a server is started.

    Attributes:
        name: Its name in the table.
        distribution: The distribution whose version is printed under the table.
        command: The command line.
        environment: Variables in addition to the harness's own.
        ready_path: Path that answers 200 once the model is loaded.
    """

    name: str
    distribution: str
    command: Callable[[Place], list[str]]
    environment: Callable[[Place], dict[str, str]]
    ready_path: str


def offline(place: Place) -> dict[str, str]:
    """Return variables that keep a server off the network, and its files in its own directory."""
    return {
        "HOME": str(place.data_dir),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
