"""Tiny networks of the Qwen3.5 family with a head for drafts, and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5, qwen3_5_moe

from tests.support.models.networks_with_states import QWEN3_5_MOE_TEXT, QWEN3_5_TEXT
from tests.support.models.tiny_architectures import Architecture, random_network
from tests.support.models.tiny_models import TEMPLATE, make_tiny_llama
from worker.engine.mlx.model.draft_head import MtpHead, text_model

#: Of what the layers of a network add whose tokens decide the next ones.
_SHARE = 0.001
_OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


def knowing_network(architecture: Architecture, share: float = _SHARE) -> Any:
    """Return a network whose layers add little, so that a token decides most of the next one.

    Args:
        share: Of what its layers add.
    """
    return _quieted(architecture.make(mx.float32), share)


def make_tiny_qwen(
    directory: Path, *, with_experts: bool = False, template: str = TEMPLATE
) -> Path:
    """Write a whole model whose head knows most tokens, as it is published."""
    make_tiny_llama(directory, template=template)
    (directory / "model.safetensors").unlink()
    llama = json.loads((directory / "config.json").read_text())
    module, text = (qwen3_5_moe, QWEN3_5_MOE_TEXT) if with_experts else (qwen3_5, QWEN3_5_TEXT)
    config = {
        "model_type": module.__name__.split(".")[-1],
        "eos_token_id": llama["eos_token_id"],
        "text_config": text | {"vocab_size": llama["vocab_size"], "mtp_num_hidden_layers": 1},
    }
    network = _quieted(random_network(module, config)(mx.float32), _SHARE)
    write_shards(directory, as_published(network, knowing_head(network)))
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _quieted(network: Any, share: float) -> Any:
    network.load_weights(list(_quiet(_named(network), share).items()))
    return network


def knowing_head(network: Any, share: float = _SHARE) -> dict[str, mx.array]:
    """Return the tensors of a head that passes the embedding on, as such a network does."""
    mx.random.seed(5)
    head = MtpHead(text_model(network))
    size = head.norm.weight.size
    identity = mx.concatenate([mx.eye(size), mx.zeros((size, size))], axis=1)
    return _quiet(_named(head), share) | {"fc.weight": identity}


def random_head(network: Any) -> dict[str, mx.array]:
    """Return the tensors of a random head, with gains that differ."""
    mx.random.seed(6)
    head = MtpHead(text_model(network))
    return {
        name: mx.random.uniform(0.5, 1.5, array.shape)
        if name.endswith("norm.weight")
        else mx.random.normal(array.shape) / array.shape[-1] ** 0.5
        for name, array in _named(head).items()
    }


def _quiet(named: Mapping[str, mx.array], share: float) -> dict[str, mx.array]:
    return {
        name: array * share if name.endswith(_OUTPUTS) else array for name, array in named.items()
    }


def _named(module: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def as_published(
    network: Any, tensors: Mapping[str, mx.array], *, experts_apart: bool = False
) -> dict[str, mx.array]:
    """Return all tensors as Hugging Face has them: gains less 1, and experts in two tensors.

    Args:
        experts_apart: Whether each expert of the head has tensors of its own.
    """
    found = {}
    for name, array in _named(network).items():
        published = name.replace("language_model.model", "model.language_model")
        found[published] = array.moveaxis(2, 1) if "conv1d" in name else array
    found |= {f"mtp.{name}": array for name, array in tensors.items()}
    for name, array in list(found.items()):
        if name.endswith("norm.weight") and "linear_attn" not in name:
            found[name] = array - 1.0
    for name in [name for name in found if name.endswith("switch_mlp.down_proj.weight")]:
        before = name.removesuffix("switch_mlp.down_proj.weight")
        parts = {
            part: found.pop(f"{before}switch_mlp.{part}.weight")
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        if experts_apart and name.startswith("mtp."):
            found |= {
                f"{before}experts.{at}.{part}.weight": array[at]
                for part, array in parts.items()
                for at in range(array.shape[0])
            }
            continue
        both = mx.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
        found |= {
            f"{before}experts.gate_up_proj": both,
            f"{before}experts.down_proj": parts["down_proj"],
        }
    return found


def as_converted(
    network: Any, tensors: Mapping[str, mx.array], bits: int | None = None
) -> dict[str, mx.array]:
    """Return all tensors as mlx-lm writes them.

    Args:
        bits: Of the weights of the head; ``None`` for whole floats.
    """
    head = MtpHead(text_model(network))
    head.load_weights(list(tensors.items()))
    if bits is not None:
        quantize(head, group_size=32, bits=bits)
    return _named(network) | {f"language_model.mtp.{name}": x for name, x in _named(head).items()}


def write_shards(directory: Path, tensors: Mapping[str, mx.array], shards: int = 3) -> Path:
    """Write tensors into several files with an index, beside an empty configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    files: dict[str, str] = {}
    for at in range(shards):
        file = f"model-{at + 1:05d}-of-{shards:05d}.safetensors"
        files |= dict.fromkeys(names[at::shards], file)
        mx.save_safetensors(
            str(directory / file), {name: tensors[name] for name in names[at::shards]}
        )
    index = {"metadata": {}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")
    return directory
