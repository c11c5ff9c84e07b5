"""Random networks with the layers, head ratios and windows of published models, scaled down.

Widths shrink to what a CPU computes in milliseconds. Lengths, windows, blocks and the growth of
caches shrink together by ``SCALE``, so that memory is divided among layers, windows and blocks as
in the published model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx_lm.models import (
    falcon_h1,
    gemma3_text,
    gemma4_text,
    glm4_moe_lite,
    gpt_oss,
    lfm2,
    llama,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
)
from mlx_lm.models.cache import KVCache

from domain.kv.spec import BLOCK_TOKENS
from tests.support.models.tiny_architectures import random_network

#: Published tokens for each token of the bench.
SCALE = 16
SCALED_BLOCK_TOKENS = BLOCK_TOKENS // SCALE
VOCABULARY = 512
_CONFIGS = Path(__file__).parents[2] / "tests" / "fixtures" / "configs"
_KV_HEADS, _HEAD_DIM = 2, 16
#: Layers of a network of ``--quick``, as a share of the published ones.
_QUICK_SHARE = 4
#: Modules whose configuration has that of the language model inside.
_WRAPPED = (qwen3_5, qwen3_5_moe)
#: Values of a narrow network, for the configurations that have these names. States keep the share
#: of a context that they have in Qwen3.5-9B: about a tenth at 20,000 tokens.
_NARROW: dict[str, Any] = {
    "query_pre_attn_scalar": float(_HEAD_DIM),
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": _HEAD_DIM,
    "v_head_dim": _HEAD_DIM,
    "block_dim": 64,
    "block_ff_dim": 96,
}
#: Of Gemma 4 the windows have 4 heads of keys, for those of full attention to be as wide to them
#: as in the published model.
_GEMMA_4: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "global_head_dim": _HEAD_DIM,
}
#: The published shape of Falcon-H1-3B: attention and a state space side by side in each layer.
#: As much of a context is state as in the published model: a tenth at 20,000 tokens.
_FALCON_H1_3B: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 10,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 128,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
    "rope_theta": 1e11,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A published model to scale down.

    Attributes:
        name: Name of the published model.
        module: Its module in mlx-lm.
        config: Its configuration, scaled.
    """

    name: str
    module: ModuleType
    config: dict[str, Any]

    def network(self, *, quick: bool = False) -> Any:
        """Return a random network in float32, and scale the growth of mlx-lm's caches.

        Args:
            quick: Keep a quarter of the layers.
        """
        KVCache.step = SCALED_BLOCK_TOKENS
        config = dict(self.config)
        if quick:
            config["num_hidden_layers"] //= _QUICK_SHARE
            if "layer_types" in config:
                config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
        if self.module in _WRAPPED:
            config = {"text_config": config}
        return random_network(self.module, config)(mx.float32)


def _published(model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((_CONFIGS / model / "config.json").read_text())
    text_config: dict[str, Any] = config.get("text_config", config)
    return text_config


def _scaled(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the same layers and head ratio, narrow and with short windows."""
    ratio = config["num_attention_heads"] // config["num_key_value_heads"]
    scaled = config | {
        "hidden_size": 64,
        "intermediate_size": 96,
        "head_dim": _HEAD_DIM,
        "num_attention_heads": ratio * _KV_HEADS,
        "num_key_value_heads": _KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1 << 14,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    narrow = _NARROW | {
        "sliding_window": config.get("sliding_window", 0) // SCALE,
        "rope_scaling": _scaled_rope(config.get("rope_scaling")),
    }
    return scaled | {key: value for key, value in narrow.items() if key in config}


def _scaled_rope(scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    if scaling is None or "original_max_position_embeddings" not in scaling:
        return scaling
    shorter = scaling["original_max_position_embeddings"] // SCALE
    return scaling | {"original_max_position_embeddings": shorter}


def _shape(name: str, module: ModuleType, **more: Any) -> Callable[[], Shape]:
    return lambda: Shape(name, module, _scaled(_published(name)) | more)


#: Makers of all shapes, by name.
SHAPES: dict[str, Callable[[], Shape]] = {
    "Qwen3-14B": _shape("Qwen3-14B", qwen3),
    "Gemma-3-12B": _shape("Gemma-3-12B", gemma3_text),
    "gpt-oss-20b": _shape("gpt-oss-20b", gpt_oss),
    "Falcon-H1-3B": lambda: Shape("Falcon-H1-3B", falcon_h1, _scaled(_FALCON_H1_3B)),
    "Llama-3.1-8B": _shape("Llama-3.1-8B", llama),
    "Qwen3.5-4B": _shape("Qwen3.5-4B", qwen3_5),
    "Qwen3.5-9B": _shape("Qwen3.5-9B", qwen3_5),
    "Qwen3.8-27B": _shape("Qwen3.8-27B", qwen3_5),
    "Qwen3.6-35B-A3B": _shape("Qwen3.6-35B-A3B", qwen3_5_moe),
    "Gemma-4-12B": _shape("Gemma-4-12B", gemma4_text, **_GEMMA_4),
    "Gemma-4-26B-A4B": _shape("Gemma-4-26B-A4B", gemma4_text, **_GEMMA_4),
    "GLM-4.7-Flash": _shape("GLM-4.7-Flash", glm4_moe_lite),
    "LFM2.5-2.6B": _shape("LFM2.5-2.6B", lfm2),
}
#: The shapes of ``--quick``: dense, and windows.
QUICK_SHAPES = ("Qwen3-14B", "Gemma-3-12B")
