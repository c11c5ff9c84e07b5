"""Each server: its start command, and the flags that enable its disk tier."""

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


def _semantic_command(place: Place) -> list[str]:
    return [str(place.python), "-m", "ops.cli.main", "serve"]


def _semantic_environment(place: Place) -> dict[str, str]:
    return {
        # The harness's own tree, even where another version is installed.
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SEMANTIC_DATA_DIR": str(place.data_dir),
        "SEMANTIC_SERVER__PORT": str(place.port),
        "SEMANTIC_MODEL__ID": str(place.model),
    }


SEMANTIC = Adapter(
    name="semantic",
    distribution="semantic",
    command=_semantic_command,
    environment=_semantic_environment,
    ready_path="/health/ready",
)


def _mlx_lm_command(place: Place) -> list[str]:
    return [
        *(str(place.python), "-m", "mlx_lm", "server", "--model", str(place.model)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--log-level", "ERROR"),
    ]


# Its prompt cache is in memory only.
MLX_LM = Adapter(
    name="mlx_lm.server",
    distribution="mlx-lm",
    command=_mlx_lm_command,
    environment=offline,
    ready_path="/health",
)


def _rapid_mlx_command(place: Place) -> list[str]:
    return [
        *(place.script("rapid-mlx"), "serve", str(place.model), "--host", "127.0.0.1"),
        *("--port", str(place.port), "--pflash", "off", "--log-level", "WARNING"),
    ]


# It saves its prefix cache in the home directory when it stops. ``--pflash off`` disables the lossy
# prompt compression, so that it answers the same prompt.
RAPID_MLX = Adapter(
    name="rapid-mlx",
    distribution="rapid-mlx",
    command=_rapid_mlx_command,
    environment=offline,
    ready_path="/health/ready",
)


def _mlx_vlm_command(place: Place) -> list[str]:
    return [
        *(place.script("mlx_vlm.server"), "--model", str(place.model)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--log-level", "WARNING"),
    ]


def _mlx_vlm_environment(place: Place) -> dict[str, str]:
    return offline(place) | {
        "APC_ENABLED": "1",
        "APC_HASH": "sha256",
        "APC_DISK_PATH": str(place.data_dir / "apc"),
    }


# Its prefix cache is off by default.
MLX_VLM = Adapter(
    name="mlx_vlm.server",
    distribution="mlx-vlm",
    command=_mlx_vlm_command,
    environment=_mlx_vlm_environment,
    ready_path="/health",
)

ADAPTERS: dict[str, Adapter] = {
    adapter.name: adapter for adapter in (SEMANTIC, MLX_LM, RAPID_MLX, MLX_VLM)
}
