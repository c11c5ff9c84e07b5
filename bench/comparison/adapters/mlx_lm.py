"""mlx-lm's own server, whose prompt cache is in memory only."""

from __future__ import annotations

from bench.comparison.adapters.base import Adapter, Place, offline


def _command(place: Place) -> list[str]:
    return [
        *(str(place.python), "-m", "mlx_lm", "server", "--model", str(place.model)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--log-level", "ERROR"),
    ]


MLX_LM = Adapter(
    name="mlx_lm.server",
    distribution="mlx-lm",
    command=_command,
    environment=offline,
    ready_path="/health",
)
