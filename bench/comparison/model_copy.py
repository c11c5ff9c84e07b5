"""Copies of a model that the comparison may change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import mlx.core as mx

Attention = Literal["as-is", "full"]
#: Standard deviation of the random factors that change the weights.
_NOISE = 0.3


def copy_model(source: Path, target: Path, attention: Attention = "as-is") -> Path:
    """Copy a model's files.

    Args:
        source: Directory of the model; it is not changed.
        target: Directory to create.
        attention: ``full`` replaces sliding windows by full attention. The answers become
            meaningless, but servers that cannot reuse sliding windows can show their reuse.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    if attention == "full":
        config_file = target / "config.json"
        config = json.loads(config_file.read_text())
        for key in ("layer_types", "sliding_window"):
            config.pop(key, None)
        config_file.write_text(json.dumps(config, indent=2))
    return target


def swap_weights(model: Path) -> None:
    """Replace the weights by others of the same shapes; all other files stay unchanged."""
    key = mx.random.key(0)
    for file in sorted(model.glob("*.safetensors")):
        weights = mx.load(str(file))
        assert isinstance(weights, dict)
        for name, weight in weights.items():
            key, draw = mx.random.split(key)
            noise = mx.random.normal(weight.shape, scale=_NOISE, key=draw)
            weights[name] = (weight * (1 + noise)).astype(weight.dtype)
        swapped = file.with_suffix(".swapped.safetensors")
        mx.save_safetensors(str(swapped), weights, {"format": "mlx"})
        swapped.replace(file)
