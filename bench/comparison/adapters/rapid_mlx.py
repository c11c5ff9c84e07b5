"""Rapid-MLX, which saves its prefix cache in the home directory when it stops.

``--pflash off`` disables the lossy prompt compression, so that it answers the same prompt.
"""

from __future__ import annotations

from bench.comparison.adapters.base import Adapter, Place, offline


def _command(place: Place) -> list[str]:
    return [
        *(place.script("rapid-mlx"), "serve", str(place.model), "--host", "127.0.0.1"),
        *("--port", str(place.port), "--pflash", "off", "--log-level", "WARNING"),
    ]


RAPID_MLX = Adapter(
    name="rapid-mlx",
    distribution="rapid-mlx",
    command=_command,
    environment=offline,
    ready_path="/health/ready",
)
