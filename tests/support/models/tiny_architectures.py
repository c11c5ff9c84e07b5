"""Tiny random networks of every architecture with supported prefix reuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path
from mlx_lm.models import (
    falcon_h1,
    gemma3_text,
    gemma3n,
    glm4_moe_lite,
    gpt_oss,
    llama,
    mamba2,
    qwen2,
    qwen3,
    qwen3_next,
)

from domain.kv.spec import LayerKind, LayerSpec

VOCABULARY = 96
#: More than a block of eight tokens and less than one of sixteen: both sides of every rule.
WINDOW = 12

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


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of network.

    Attributes:
        name: The name in mlx-lm.
        make: Returns a random network with weights of a dtype.
        layers: Its cache layers in exact form, derived by hand, with elements of four bytes.
        kv_bits: Bits of its keys and values in the engine; 0 for exact ones.
    """

    name: str
    make: Callable[[mx.Dtype], Any]
    layers: tuple[LayerSpec, ...]
    kv_bits: int = 0


def random_network(module: ModuleType, config: dict[str, Any]) -> Callable[[mx.Dtype], Any]:
    """Return a maker of the same random network of an mlx-lm module, with weights of a dtype."""

    def make(dtype: mx.Dtype = mx.float32) -> Any:
        mx.random.seed(11)
        model = module.Model(
            module.ModelArgs.from_dict({"model_type": module.__name__.split(".")[-1]} | config)
        )

        def weight(path: str, array: mx.array) -> mx.array:
            if not mx.issubdtype(array.dtype, mx.floating):  # packed
                return array
            if path.endswith("sinks"):  # zeros would hide a sink that gets lost
                return mx.random.normal(array.shape).astype(dtype)
            # Sharp distributions: with small weights every token would be nearly as likely.
            scale = 3 if array.ndim == 2 else 1
            return (array * scale).astype(dtype)

        model.update(tree_map_with_path(weight, model.parameters()))
        mx.eval(model.parameters())
        return model

    return make


def _attention(kv_heads: int = 2, dim: int = 8) -> LayerSpec:
    return LayerSpec(
        kind=LayerKind.FULL, kv_heads=kv_heads, key_dim=dim, value_dim=dim, element_bytes=4
    )


def _window(dim: int = 8) -> LayerSpec:
    return LayerSpec(
        kind=LayerKind.SLIDING,
        kv_heads=2,
        key_dim=dim,
        value_dim=dim,
        element_bytes=4,
        window=WINDOW,
    )


def state_layer(elements: int) -> LayerSpec:
    return LayerSpec(kind=LayerKind.STATE, state_bytes=elements * 4)


LLAMA = Architecture(
    "llama",
    random_network(
        llama,
        _COMMON
        | {
            "num_hidden_layers": 2,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    (_attention(),) * 2,
)
QWEN2 = Architecture(
    "qwen2",
    random_network(qwen2, _COMMON | {"num_hidden_layers": 3, "rope_theta": 1000000.0}),
    (_attention(),) * 3,
)
QWEN3 = Architecture(
    "qwen3",
    random_network(qwen3, _COMMON | {"num_hidden_layers": 2, "rope_theta": 1000000.0}),
    (_attention(),) * 2,
)
_GEMMA3 = _COMMON | {
    "num_hidden_layers": 2,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 8.0,
}
GEMMA3 = Architecture(
    "gemma3",
    random_network(gemma3_text, _GEMMA3),
    (_window(), _attention()),
)
_GPT_OSS = _COMMON | {
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
}
GPT_OSS = Architecture(
    "gpt_oss",
    random_network(gpt_oss, _GPT_OSS),
    (_window(), _attention()),
)
#: Multi-head latent attention: a latent of 16 and a rotated key of 8 for all heads.
GLM4_MOE_LITE = Architecture(
    "glm4_moe_lite",
    random_network(
        glm4_moe_lite,
        _COMMON
        | {
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    (LayerSpec(kind=LayerKind.FULL, kv_heads=1, key_dim=16, value_dim=8, element_bytes=4),) * 2,
)
#: The last two layers attend to the keys of the ones before.
GEMMA3N = Architecture(
    "gemma3n",
    random_network(
        gemma3n,
        {
            "text_config": _COMMON
            | {
                "model_type": "gemma3n_text",
                "num_hidden_layers": 4,
                "num_kv_shared_layers": 2,
                "vocab_size_per_layer_input": VOCABULARY,
                "sliding_window": WINDOW,
                "rope_local_base_freq": 10000.0,
                "rope_theta": 1000000.0,
                "final_logit_softcapping": 30.0,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
                "hidden_size_per_layer_input": 8,
                "altup_num_inputs": 2,
                "altup_coef_clip": 120.0,
                "altup_correct_scale": True,
                "altup_active_idx": 0,
                "laurel_rank": 8,
            }
        },
    ),
    (_window(), _attention()),
)
#: Attention and a state space side by side in every layer: nested caches.
#: Convolution: 3 past inputs of 32 + 2 x 16 channels; state: 4 heads of 8 by 16.
_FALCON_H1 = _COMMON | {
    "num_hidden_layers": 2,
    "mamba_d_ssm": 32,
    "mamba_d_head": 8,
    "mamba_n_heads": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 8,
    "rope_theta": 10000.0,
}
FALCON_H1 = Architecture(
    "falcon_h1",
    random_network(falcon_h1, _FALCON_H1),
    (state_layer(3 * 64 + 4 * 8 * 16), _attention()) * 2,
)
#: A linear layer to one of attention, with experts.
#: Convolution: 3 past inputs of 2 x 16 + 32 channels; state: 4 value heads of 8 by 8.
_QWEN3_NEXT = _COMMON | {
    "num_hidden_layers": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "norm_topk_prob": True,
    "full_attention_interval": 2,
}
QWEN3_NEXT = Architecture(
    "qwen3_next",
    random_network(qwen3_next, _QWEN3_NEXT),
    (state_layer(3 * 64 + 4 * 8 * 8), _attention()),
)
#: No attention at all.
#: Convolution: 3 past inputs of 32 + 2 x 16 channels; state: 4 heads of 8 by 16.
MAMBA2 = Architecture(
    "mamba2",
    random_network(
        mamba2,
        {
            "num_heads": 4,
            "head_dim": 8,
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 32,
            "state_size": 16,
            "num_hidden_layers": 2,
            "layer_norm_epsilon": 1e-5,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "tie_word_embeddings": False,
            "time_step_limit": [0.0, 100.0],
            "time_step_rank": "auto",
        },
    ),
    (state_layer(3 * 64 + 4 * 8 * 16),) * 2,
)

#: Heads as long as those of real models, which can be quantised.
QWEN3_WIDE = Architecture(
    "qwen3_wide",
    random_network(
        qwen3, _COMMON | {"num_hidden_layers": 2, "rope_theta": 1000000.0, "head_dim": 64}
    ),
    (_attention(dim=64),) * 2,
)
#: The same with enough layers that the first and the last one stay exact.
QWEN3_DEEP = Architecture(
    "qwen3_deep",
    random_network(
        qwen3, _COMMON | {"num_hidden_layers": 6, "rope_theta": 1000000.0, "head_dim": 64}
    ),
    (_attention(dim=64),) * 6,
)
GEMMA3_WIDE = Architecture(
    "gemma3_wide",
    random_network(gemma3_text, _GEMMA3 | {"head_dim": 64}),
    (_window(64), _attention(dim=64)),
)
GPT_OSS_WIDE = Architecture(
    "gpt_oss_wide",
    random_network(gpt_oss, _GPT_OSS | {"head_dim": 64}),
    (_window(64), _attention(dim=64)),
)
QWEN3_NEXT_WIDE = Architecture(
    "qwen3_next_wide",
    random_network(qwen3_next, _QWEN3_NEXT | {"head_dim": 64}),
    (state_layer(3 * 64 + 4 * 8 * 8), _attention(dim=64)),
)
#: The same as ``FALCON_H1``; half of what it keeps are states.
FALCON_H1_WIDE = Architecture(
    "falcon_h1_wide",
    random_network(falcon_h1, _FALCON_H1 | {"head_dim": 64}),
    (state_layer(3 * 64 + 4 * 8 * 16), _attention(dim=64)) * 2,
)

#: Running contexts, parked ones and files in 8 bits.
QWEN3_8_BITS = replace(QWEN3_WIDE, name="qwen3_8_bits", kv_bits=8)
#: The same beside exact layers of the same kind.
QWEN3_DEEP_8_BITS = replace(QWEN3_DEEP, name="qwen3_deep_8_bits", kv_bits=8)
GPT_OSS_8_BITS = replace(GPT_OSS_WIDE, name="gpt_oss_8_bits", kv_bits=8)

ARCHITECTURES = (
    LLAMA,
    QWEN2,
    QWEN3,
    GEMMA3,
    GEMMA3N,
    GPT_OSS,
    GLM4_MOE_LITE,
    FALCON_H1,
    QWEN3_NEXT,
    MAMBA2,
    QWEN3_8_BITS,
    QWEN3_DEEP_8_BITS,
    GPT_OSS_8_BITS,
)
#: Those whose heads are as long as those of real models.
WIDE_ARCHITECTURES = (
    QWEN3_WIDE,
    QWEN3_DEEP,
    GEMMA3_WIDE,
    GPT_OSS_WIDE,
    FALCON_H1_WIDE,
    QWEN3_NEXT_WIDE,
)
