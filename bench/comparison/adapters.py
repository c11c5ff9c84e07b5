"""Each server: its start command, and the flags that enable its disk tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


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

    def filled(self, text: str) -> str:
        """Return a text with the fields of this place; ``{bin}`` is where scripts are."""
        fields = {"python": self.python, "bin": self.python.parent, "model": self.model}
        return text.format(**fields, data=self.data_dir, port=self.port)


#: Keeps a server off the network, and its files in its own directory.
OFFLINE: Final = {
    "HOME": "{data}",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How a server is started.

    Attributes:
        name: Its name in the table.
        distribution: The distribution whose version is printed under the table.
        words: The command line, with fields of its place.
        variables: Variables in addition to the harness's own, with fields of its place.
        ready_path: Path that answers 200 once the model is loaded.
    """

    name: str
    distribution: str
    words: str
    ready_path: str
    variables: Mapping[str, str] = field(default_factory=lambda: OFFLINE)

    def command(self, place: Place) -> list[str]:
        """Return the command line."""
        return [place.filled(word) for word in self.words.split()]

    def environment(self, place: Place) -> dict[str, str]:
        """Return the variables."""
        return {name: place.filled(value) for name, value in self.variables.items()}


SEMANTIC: Final = Adapter(
    name="semantic",
    distribution="semantic",
    words="{python} -m ops.cli.main serve",
    ready_path="/health/ready",
    variables={
        # The harness's own tree, even where another version is installed.
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SEMANTIC_DATA_DIR": "{data}",
        "SEMANTIC_SERVER__PORT": "{port}",
        "SEMANTIC_MODEL__ID": "{model}",
    },
)
# Its prompt cache is in memory only. It multiplies with the BLAS of the service.
MLX_LM: Final = Adapter(
    name="mlx_lm.server",
    distribution="mlx-lm",
    words="{python} -m bench.mlx_lm_server --model {model} --host 127.0.0.1 --port {port}"
    " --log-level ERROR",
    ready_path="/health",
)
# It saves its prefix cache in the home directory when it stops. ``--pflash off`` disables the lossy
# prompt compression, so that it answers the same prompt.
RAPID_MLX: Final = Adapter(
    name="rapid-mlx",
    distribution="rapid-mlx",
    words="{bin}/rapid-mlx serve {model} --host 127.0.0.1 --port {port} --pflash off"
    " --log-level WARNING",
    ready_path="/health/ready",
)
# Its prefix cache is off by default.
MLX_VLM: Final = Adapter(
    name="mlx_vlm.server",
    distribution="mlx-vlm",
    words="{bin}/mlx_vlm.server --model {model} --host 127.0.0.1 --port {port} --log-level WARNING",
    ready_path="/health",
    variables=OFFLINE | {"APC_ENABLED": "1", "APC_HASH": "sha256", "APC_DISK_PATH": "{data}/apc"},
)
ADAPTERS: Final = {one.name: one for one in (SEMANTIC, MLX_LM, RAPID_MLX, MLX_VLM)}
