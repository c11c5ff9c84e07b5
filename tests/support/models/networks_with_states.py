"""Tiny random networks with recurrent layers, of the families that people run."""

from __future__ import annotations

from typing import Any

from mlx_lm.models import kimi_linear, lfm2, lfm2_moe, nemotron_h, olmo_hybrid, qwen3_5, qwen3_5_moe
from mlx_lm.models import mamba as mamba_1

from tests.support.models.tiny_architectures import (
    FALCON_H1,
    MAMBA2,
    QWEN3_NEXT,
    VOCABULARY,
    Architecture,
    random_network,
)

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
_GATED_DELTA = _COMMON | {
    "num_hidden_layers": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 32,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_SHORT_CONVOLUTIONS = _COMMON | {
    "num_hidden_layers": 2,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "full_attn_idxs": [1],
    "rope_theta": 10000.0,
}


def _network(module: Any, config: dict[str, Any]) -> Architecture:
    # Their cache layers are not compared with a plan.
    return Architecture(module.__name__.split(".")[-1], random_network(module, config), ())


QWEN3_5_TEXT = _GATED_DELTA | {"model_type": "qwen3_5_text"}
QWEN3_5 = _network(qwen3_5, {"text_config": QWEN3_5_TEXT})
QWEN3_5_MOE_TEXT = _GATED_DELTA | _EXPERTS | {"model_type": "qwen3_5_moe_text"}
QWEN3_5_MOE = _network(qwen3_5_moe, {"text_config": QWEN3_5_MOE_TEXT})
LFM2 = _network(
    lfm2,
    _SHORT_CONVOLUTIONS
    | {
        "block_dim": 32,
        "block_ff_dim": 64,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
)
LFM2_MOE = _network(
    lfm2_moe,
    _SHORT_CONVOLUTIONS
    | {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "use_expert_bias": False,
    },
)
NEMOTRON_H = _network(
    nemotron_h,
    _COMMON
    | {
        "num_hidden_layers": 3,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-"],
    },
)
KIMI_LINEAR = _network(
    kimi_linear,
    _COMMON
    | {
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
        "model_max_length": 1024,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "rope_theta": 10000.0,
    },
)
OLMO_HYBRID = _network(
    olmo_hybrid,
    _GATED_DELTA
    | {
        "layer_types": ["linear_attention", "full_attention"],
        "attention_bias": False,
        "linear_allow_neg_eigval": True,
        "linear_num_key_heads": 4,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0},
    },
)
#: Its recurrence is a method of its own.
MAMBA = _network(
    mamba_1,
    {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 16,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "tie_word_embeddings": False,
    },
)

#: Those whose drafts are verified.
DRAFTING_STATES = (
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_NEXT,
    LFM2,
    LFM2_MOE,
    NEMOTRON_H,
    FALCON_H1,
    MAMBA2,
    KIMI_LINEAR,
    OLMO_HYBRID,
)
