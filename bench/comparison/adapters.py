"""Each server: its start command, and the flags that enable its disk tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one server runs.

    Attributes:
        python: Interpreter of the environment that has the server.
        model: Directory of the model.
        data_dir: The only directory that it may write to; kept across restarts.
        port: Loopback port to listen on.
        kv_budget_mb: Most memory of its contexts, in units of 2^20 bytes; ``None`` for its default.
    """

    python: Path
    model: Path
    data_dir: Path
    port: int
    kv_budget_mb: int | None = None

    def filled(self, text: str) -> str:
        """Return a text with the fields of this place; ``{bin}`` is where scripts are."""
        fields: dict[str, object] = {
            "python": self.python,
            "bin": self.python.parent,
            "model": self.model,
        }
        budget = self.kv_budget_mb or 0
        fields |= {"data": self.data_dir, "port": self.port}
        fields |= {"mb": budget, "gb": budget / 1024, "bytes": budget * 2**20}
        return text.format(**fields)


_ROOT: Final = str(Path(__file__).parents[2])
#: Keeps a server off the network, and its files in its own directory.
OFFLINE: Final = {
    "HOME": "{data}",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
#: The same for a server in an environment of its own, which imports ``bench.blas``.
ELSEWHERE: Final = {**OFFLINE, "PYTHONPATH": _ROOT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How a server is started.

    Attributes:
        name: Its name in the table.
        distribution: The distribution whose version is printed under the table.
        words: The command line, with fields of its place.
        variables: Variables in addition to the harness's own, with fields of its place.
        ready_path: Path that answers 200 once the model is loaded.
        budget: Options and variables that bound the memory of its contexts.
    """

    name: str
    distribution: str
    words: str
    ready_path: str
    variables: Mapping[str, str] = field(default_factory=lambda: OFFLINE)
    budget: Mapping[str, str] = field(default_factory=dict)

    def command(self, place: Place) -> list[str]:
        """Return the command line."""
        bound = self._bound(place, are_options=True)
        words = [*self.words.split(), *(word for pair in bound.items() for word in pair)]
        return [place.filled(word) for word in words]

    def environment(self, place: Place) -> dict[str, str]:
        """Return the variables."""
        variables = {**self.variables, **self._bound(place, are_options=False)}
        return {name: place.filled(value) for name, value in variables.items()}

    def _bound(self, place: Place, *, are_options: bool) -> dict[str, str]:
        if place.kv_budget_mb is None:
            return {}
        pairs = self.budget.items()
        return {name: value for name, value in pairs if name.startswith("-") == are_options}


SEMANTIC: Final = Adapter(
    name="semantic",
    distribution="semantic",
    words="{python} -m ops.cli.main serve",
    ready_path="/health/ready",
    variables={
        # The harness's own tree, even where another version is installed.
        "PYTHONPATH": _ROOT,
        "SEMANTIC_DATA_DIR": "{data}",
        "SEMANTIC_SERVER__PORT": "{port}",
        "SEMANTIC_MODEL__ID": "{model}",
    },
    budget={"SEMANTIC_ENGINE__KV_BUDGET_MB": "{mb}"},
)


def _other(name: str, distribution: str, program: str, **more: Any) -> Adapter:
    """Return a server of others, with the BLAS of the service."""
    words = f"{{python}} -m bench.blas {program} --host 127.0.0.1 --port {{port}}"
    fields = {"ready_path": "/health", "variables": ELSEWHERE} | more
    return Adapter(name=name, distribution=distribution, words=words, **fields)


# Its prompt cache is in memory only, and its running requests are not bounded.
MLX_LM: Final = _other(
    "mlx_lm.server",
    "mlx-lm",
    "mlx_lm.server:main --model {model} --log-level ERROR",
    variables=OFFLINE,
    budget={"--prompt-cache-bytes": "{bytes}"},
)
# It saves its prefix cache in the home directory when it stops. ``--pflash off`` disables the lossy
# prompt compression, so that it answers the same prompt.
RAPID_MLX: Final = _other(
    "rapid-mlx",
    "rapid-mlx",
    "rapid_mlx.cli:main serve {model} --pflash off --log-level WARNING",
    ready_path="/health/ready",
    budget={"--cache-memory-mb": "{mb}"},
)
# Its prefix cache is off by default.
MLX_VLM: Final = _other(
    "mlx_vlm.server",
    "mlx-vlm",
    "mlx_vlm.server:main --model {model} --log-level WARNING",
    variables={
        **ELSEWHERE,
        "APC_ENABLED": "1",
        "APC_HASH": "sha256",
        "APC_DISK_PATH": "{data}/apc",
    },
    budget={"APC_MEMORY_MAX_GB": "{gb}"},
)
VLLM_MLX: Final = _other(
    "vllm-mlx",
    "vllm-mlx",
    "vllm_mlx.cli:main serve {model} --continuous-batching",
    budget={"--cache-memory-mb": "{mb}"},
)
ADAPTERS: Final = {one.name: one for one in (SEMANTIC, MLX_LM, RAPID_MLX, MLX_VLM, VLLM_MLX)}
