"""Random LoRA adapters, in the files that ``mlx_lm.lora`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

_ADDED = ("lora_a", "lora_b", "m")


def make_adapter(directory: Path, model_dir: Path, *, seed: int, kind: str = "lora") -> Path:
    """Write a random adapter of a model and return ``directory``.

    Args:
        kind: ``lora`` or ``dora``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    network, _ = mlx_lm.utils.load_model(model_dir, lazy=True)
    parameters = {
        "rank": 4,
        "scale": 4.0,
        "dropout": 0.0,
        "keys": ["self_attn.q_proj", "mlp.up_proj"],
    }
    config: dict[str, Any] = {
        "fine_tune_type": kind,
        "num_layers": len(network.layers),
        "lora_parameters": parameters,
    }
    linear_to_lora_layers(network, len(network.layers), parameters, use_dora=kind == "dora")
    named: Any = tree_flatten(network.parameters())
    mx.random.seed(seed)
    added = {
        name: mx.random.normal(array.shape)
        for name, array in named
        if name.rsplit(".", 1)[-1] in _ADDED
    }
    mx.save_safetensors(str(directory / "adapters.safetensors"), added)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
