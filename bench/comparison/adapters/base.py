"""What the harness has to know about a server."""

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
        data_dir: All that the server may write; kept over restarts.
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
        name: What the table calls it.
        distribution: Whose version is told under the table.
        command: The command line.
        environment: Variables on top of the harness's own.
        ready_path: Answers 200 once the model is loaded.
    """

    name: str
    distribution: str
    command: Callable[[Place], list[str]]
    environment: Callable[[Place], dict[str, str]]
    ready_path: str


def offline(place: Place) -> dict[str, str]:
    """Keep a server off the network, and what it writes in its own directory."""
    return {
        "HOME": str(place.data_dir),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
