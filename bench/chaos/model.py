"""The demo model in float32.

Its own weights are bfloat16. There, a sum in another order (in a batch, or from a restored
context) may round differently and change a token that was nearly tied, without any fault. In
float32 the service promises the same tokens, so the checker can require them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import mlx.core as mx

from bench.demo_model.render import MODEL_DIR

#: Names of the models between which a run swaps. They have the same files, so the same fingerprint,
#: and an answer continues over a swap.
MODELS: Final = ("one", "two")


def make_exact_model(target: Path) -> Path:
    """Write the demo model with float32 weights to a new directory and return it."""
    shutil.copytree(MODEL_DIR, target, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    config_file = target / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8")) | {"torch_dtype": "float32"}
    config_file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    file = target / "model.safetensors"
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    exact = {name: weight.astype(mx.float32) for name, weight in weights.items()}
    wider = file.with_suffix(".exact.safetensors")
    mx.save_safetensors(str(wider), exact, {"format": "mlx"})
    wider.replace(file)
    return target
