"""Rapid-MLX; it saves its prefix cache below the home directory when it is asked to end.

``--pflash off``: the lossy prompt compression would answer from another prompt than the others.
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
