"""mlx-vlm's server with its automatic prefix cache (off by default) in memory and on disk."""

from __future__ import annotations

from bench.comparison.adapters.base import Adapter, Place, offline


def _command(place: Place) -> list[str]:
    return [
        *(place.script("mlx_vlm.server"), "--model", str(place.model)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--log-level", "WARNING"),
    ]


def _environment(place: Place) -> dict[str, str]:
    return offline(place) | {
        "APC_ENABLED": "1",
        "APC_HASH": "sha256",
        "APC_DISK_PATH": str(place.data_dir / "apc"),
    }


MLX_VLM = Adapter(
    name="mlx_vlm.server",
    distribution="mlx-vlm",
    command=_command,
    environment=_environment,
    ready_path="/health",
)
