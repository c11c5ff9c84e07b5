"""Checks the files of a model's weights without reading the weights."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ops.models.hub_cache import has_weights
from worker.engine.ports import ModelLoadError


def check_weight_files(model_dir: Path) -> None:
    """Refuse a directory whose weights are incomplete.

    Raises:
        ModelLoadError: A file that the index names is missing, or a file is not a whole one.
    """
    if not has_weights(model_dir):
        msg = f"{model_dir} does not hold all files of weights that its index names"
        raise ModelLoadError(msg)
    for path in sorted(model_dir.glob("*.safetensors")):
        try:
            # Reads the header, and compares it with the length of the file.
            with safe_open(path, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            msg = f"{path} is no whole file of weights: {error}"
            raise ModelLoadError(msg) from error
