"""This service, with its defaults."""

from __future__ import annotations

from pathlib import Path

from bench.comparison.adapters.base import Adapter, Place


def _command(place: Place) -> list[str]:
    return [str(place.python), "-m", "ops.cli.main", "serve"]


def _environment(place: Place) -> dict[str, str]:
    return {
        # The harness's own tree, even where another version is installed.
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "SEMANTIC_DATA_DIR": str(place.data_dir),
        "SEMANTIC_SERVER__PORT": str(place.port),
        "SEMANTIC_MODEL__ID": str(place.model),
    }


SEMANTIC = Adapter(
    name="semantic",
    distribution="semantic",
    command=_command,
    environment=_environment,
    ready_path="/health/ready",
)
