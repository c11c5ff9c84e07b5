"""The table of the families of mlx-lm in ``docs/families.md``.

``python -m tests.support.models.families`` writes it: a tiny random network of each family, all
from one configuration, is asked what the engine can do with it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm
import mlx_lm.models
import pytest

from domain.kv.spec import LayerKind, LayerSpec
from domain.values import Ability, Degree, ModelAbilities
from tests.support.day_and_night import in_turn
from tests.support.models.tiny_architectures import (
    ARCHITECTURES,
    QWEN2,
    QWEN3,
    QWEN3_DEEP_8_BITS,
    VOCABULARY,
    WINDOW,
    Architecture,
    random_network,
    state_layer,
)
from worker.engine.mlx.memory.at_load import probed_spec
from worker.engine.mlx.model.abilities import abilities_of
from worker.engine.mlx.rows.ragged_states import find_row_support

PAGE: Final = Path(__file__).parents[3] / "docs" / "families.md"
BEGIN: Final = "<!-- families: begin (made by `python -m tests.support.models.families`) -->"
END: Final = "<!-- families: end -->"
#: Heads of the columns: the abilities.
HEADS: Final = tuple(one.name.replace("_", " ") for one in fields(ModelAbilities))
#: Families whose networks do not run here, and why.
NOT_BUILT: Final = {
    "bitnet": "needs Metal: its kernels have no other form",
    "muse_spark": "needs Metal: its kernels have no other form",
    "olmo": "needs the package hf_olmo, which mlx-lm does not install",
}
#: Families whose tokens depend on the pieces in which a prompt is read, in mlx-lm too, and why.
BY_PIECES: Final = {
    "plamo3": "its mask of a window is one token wider than the cache that mlx-lm gives it"
}
#: Families whose networks overwrite foreign memory on the CPU: only their shapes are computed.
SHAPES_ONLY: Final = frozenset({"phi3small"})

_LAYERS: Final = 4
#: Keys and values of this length can be kept in 8 bits.
_HEAD_DIM: Final = 32
_ALTERNATE: Final = ["sliding_attention", "full_attention"] * (_LAYERS // 2)
_ROPE: Final[dict[str, Any]] = {"rope_theta": 10000.0, "rope_type": "default"}
_LLAMA_4_ROPE: Final[dict[str, Any]] = _ROPE | {
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 64,
}
_CONVOLUTIONS: Final[dict[str, Any]] = {
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention"] * (_LAYERS // 2),
}
_LFM_2: Final[dict[str, Any]] = _CONVOLUTIONS | {
    "block_dim": 128,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
}
_KIMI_DELTA: Final[dict[str, Any]] = {
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 8,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
    },
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "model_max_length": 1024,
}
_LONGCAT: Final[dict[str, Any]] = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "zero_expert_num": 2,
    "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
_GEMMA_4: Final[dict[str, Any]] = {
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "layer_types": _ALTERNATE,
}

#: Under the names that most families give these values; each family takes those that it knows.
_SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": _LAYERS,
    "num_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": _HEAD_DIM,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "sliding_window": WINDOW,
    "tie_word_embeddings": False,
    **dict.fromkeys(
        ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
        1e-5,
    ),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias"), False),
    "use_qk_norm": True,
    # Experts.
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "decoder_sparse_step"), 1),
    "moe_layer_freq": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    # Latent attention.
    "kv_lora_rank": 64,
    "q_lora_rank": 48,
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), _HEAD_DIM),
    "index_n_heads": 2,
    "index_head_dim": 64,
    "index_topk": 8,
    # States.
    **dict.fromkeys(("conv_kernel", "linear_conv_kernel_dim", "mamba_d_conv"), 4),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 16),
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head"), _HEAD_DIM),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    "linear_num_key_heads": 2,
    "mamba_d_ssm": 128,
    "mamba_chunk_size": 8,
    "mamba_proj_bias": False,
    "mamba_expand": 2,
    "time_step_rank": "auto",
    "time_step_limit": [0.0, 100.0],
    "use_conv_bias": True,
    # Scales.
    "attention_multiplier": 0.35,
    **dict.fromkeys(("logits_scaling", "embedding_multiplier", "residual_multiplier"), 1.0),
}
_GPT_2: Final[dict[str, Any]] = {
    "n_embd": 128,
    "n_head": 4,
    "n_layer": _LAYERS,
    "n_positions": 1024,
    "n_ctx": 1024,
    "n_inner": 64,
}

#: What a family needs beside ``_SIZES``: names of its own, and the order of its layers.
_OWN: Final[dict[str, dict[str, Any]]] = {
    "afm7": {"hidden_dim": 128, "num_kv_reuse_layers": 2, "num_heads": 4, "num_kv_heads": 2},
    "afmoe": {"layer_types": _ALTERNATE, "num_dense_layers": 1},
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2},
    "bailing_hybrid": {"layer_group_size": 4, "group_norm_size": 1},
    "bailing_moe_linear": {"layer_group_size": 4, "group_norm_size": 1},
    "dbrx": {
        "d_model": 128,
        "n_layers": _LAYERS,
        "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale_all_dim": 1.0,
        }
    },
    "deepseek_v41": {
        "num_hidden_layers": _LAYERS,
        "compress_ratios": [0, 4, 8, 4],
        "o_groups": 2,
        "o_lora_rank": 16,
        "hc_mult": 2,
    },
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LLLG"},
    "exaone_moe": {"layer_types": _ALTERNATE, "is_moe_layer": [False, True, True, True]},
    "gear": {"layer_types": _ALTERNATE},
    "gemma3": {"sliding_window_pattern": 3, "query_pre_attn_scalar": float(_HEAD_DIM)},
    "gemma3_text": {"sliding_window_pattern": 3, "query_pre_attn_scalar": float(_HEAD_DIM)},
    "gemma3n": {
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCABULARY,
        "rope_local_base_freq": 10000.0,
        "final_logit_softcapping": 30.0,
        "layer_types": _ALTERNATE,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
    },
    "gemma4": _GEMMA_4,
    "gemma4_text": _GEMMA_4,
    "glm4_moe": {"rope_scaling": None},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "glm_moe_dsa": {"rope_parameters": _ROPE},
    "gpt2": _GPT_2,
    "gpt_bigcode": _GPT_2,
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5},
    "gpt_oss": {"layer_types": _ALTERNATE},
    "gptj": _GPT_2 | {"rotary_dim": 4},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_groups": 1,
        "shared_intermediate_size": 32,
    },
    "hunyuan": {
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
    },
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "kimi_k3": _KIMI_DELTA,
    "kimi_linear": _KIMI_DELTA,
    "lfm2": _LFM_2,
    "lfm2-vl": _LFM_2,
    "lfm2_moe": _CONVOLUTIONS | {"use_expert_bias": True, "num_dense_layers": 1},
    "lille-130m": _GPT_2 | {"block_size": 1024, "n_kv_heads": 2},
    "llama4": {
        "attention_chunk_size": WINDOW,
        "interleave_moe_layer_step": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 64,
        "rope_scaling": None,
    },
    "llama4_text": {"intermediate_size_mlp": 64, "no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": _LONGCAT,
    "mamba2": {"num_heads": 8},
    "mellum": {
        "layer_types": _ALTERNATE,
        "rope_parameters": dict.fromkeys(_ALTERNATE, _ROPE),
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "swa_rope_theta": 10000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": _HEAD_DIM,
        "swa_v_head_dim": _HEAD_DIM,
    },
    "minicpm": {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12.0},
    "minicpm3": {
        "dim_model_base": 32,
        "scale_depth": 1.4,
        "scale_emb": 12.0,
        "rope_scaling": {
            "type": "longrope",
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * (_HEAD_DIM // 2),
            "long_factor": [1.0] * (_HEAD_DIM // 2),
        },
    },
    "minimax": {"shared_intermediate_size": 64, "rotary_dim": 16},
    "minimax_m3_vl": {
        "dense_intermediate_size": 64,
        "shared_intermediate_size": 32,
        "moe_layer_freq": [0, 1, 1, 1],
        "index_block_size": 4,
        "index_topk_blocks": 2,
        "sparse_attention_freq": [0, 1, 1, 1],
    },
    "ministral3": {"rope_parameters": _LLAMA_4_ROPE},
    "mistral4": {"rope_parameters": _LLAMA_4_ROPE},
    "muse_spark": {
        "post_norm_eps": 1e-5,
        "rope_parameters": _ROPE,
        "layer_rope_theta": [10000.0, 0, 10000.0, 0],
        "layer_types": _ALTERNATE,
        "final_logit_softcapping": 30.0,
        "output_multiplier": 1.0,
        "moe_hidden_size": 32,
        "num_shared_experts": 0,
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
        ]
        * 2
    },
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-", "E"]},
    "olmo_hybrid": {"linear_allow_neg_eigval": True},
    "openelm": {
        "num_transformer_layers": _LAYERS,
        "model_dim": 128,
        "ffn_dim_divisor": 8,
        "num_query_heads": [4] * _LAYERS,
        "num_kv_heads": [2] * _LAYERS,
        "ffn_multipliers": [2.0] * _LAYERS,
    },
    "phi3small": {
        "dense_attention_every_n_layers": 2,
        "ff_intermediate_size": 64,
        "gegelu_limit": 20.0,
    },
    "phixtral": {
        "num_vocab": VOCABULARY,
        "model_dim": 128,
        "num_heads": 4,
        "rotary_dim": 4,
    },
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": _HEAD_DIM, "attention_window_size": WINDOW, "mamba_step": 2},
    "prism_hadamard_qwen35": {
        "num_experts": 0,
        "schema_version": 1,
        "tensor_namespace": "mlx-lm-text",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {
                "path": "model.layers.0.mlp.gate_proj",
                "embedding": False,
                "dtype": "float16",
                "block": 0,
            }
        ],
    },
    "plamo3": {"sliding_window_pattern": 2},
    "qwen3_5": {"num_experts": 0},
    "qwen": {"kv_channels": _HEAD_DIM},
    "recurrent_gemma": {
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "recurrent", "attention", "recurrent"],
    },
    "rwkv7": {
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "spark2_5": {"rope_parameters": dict.fromkeys(_ALTERNATE, _ROPE)},
    "step3p5": {"num_attention_groups": 2, "share_expert_dim": 32, "layer_types": _ALTERNATE},
}


def families() -> list[str]:
    """Return the names of all families of mlx-lm, those of ``NOT_BUILT`` included."""
    names = [module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)]
    return [name for name in names if name in NOT_BUILT or _has_model(name)]


def _has_model(name: str) -> bool:
    return hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "Model")


def config_of(family: str) -> dict[str, Any]:
    """Return the configuration of a tiny network, as its ``config.json`` would have it."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = {"model_type": family} | _SIZES | _OWN.get(family, {})
    if "text_config" in inspect.signature(module.ModelArgs).parameters:
        config["text_config"] = dict(config)
    return config


def network_of(family: str, dtype: mx.Dtype = mx.float32) -> Any:
    """Return a tiny random network."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    return random_network(module, config_of(family))(dtype)


def _architecture(family: str, *layers: LayerSpec) -> Architecture:
    return Architecture(family, partial(network_of, family), layers)


_full: Final = partial(LayerSpec, kind=LayerKind.FULL, element_bytes=4)
_FULL: Final = _full(kv_heads=2, key_dim=_HEAD_DIM, value_dim=_HEAD_DIM)
#: Of latent attention: the latent, and the rotated key of all heads.
_LATENT: Final = _full(kv_heads=1, key_dim=64, value_dim=_HEAD_DIM)
_WINDOW: Final = LayerSpec(
    kind=LayerKind.SLIDING,
    kv_heads=2,
    key_dim=_HEAD_DIM,
    value_dim=_HEAD_DIM,
    element_bytes=4,
    window=WINDOW,
)
#: Three inputs of a convolution over 2 x 2 heads of keys and 4 of values; 4 states of 8 by 8.
_DELTA: Final = state_layer(3 * (2 * 2 * 8 + 4 * 8) + 4 * 8 * 8)
#: The kinds of caches that ``ARCHITECTURES`` lacks.
FURTHER_ARCHITECTURES: Final = (
    _architecture("deepseek_v3", *(_LATENT,) * _LAYERS),
    # Beside each latent, the keys of the indexer.
    _architecture(
        "deepseek_v32", *(_LATENT, _full(kv_heads=1, key_dim=64, value_dim=64)) * _LAYERS
    ),
    _architecture("qwen3_5", *(_DELTA,) * 3, _FULL),
    _architecture("qwen3_5_moe", *(_DELTA,) * 3, _FULL),
    # The last two layers attend to the keys of the ones before.
    _architecture(
        "gemma4",
        _WINDOW,
        _full(kv_heads=2, key_dim=64, value_dim=64),
    ),
    # The keys of blocks in all layers but the first, whose values have no elements.
    _architecture(
        "minimax_m3_vl", _FULL, *(_FULL, _full(kv_heads=1, key_dim=64, value_dim=0)) * (_LAYERS - 1)
    ),
    # The last two layers attend to the keys of the one before.
    _architecture("afm7", *(_FULL,) * 2),
    # Chunks of the sequence: a token sees at most the ones of a window.
    _architecture("llama4", *(_WINDOW,) * 3, _FULL),
    # Three ids of 8 bytes, and two latents in each layer.
    _architecture("longcat_flash_ngram", state_layer(3 * 2), *(_LATENT,) * 2 * _LAYERS),
    # Two inputs of a convolution.
    _architecture("lfm2", *(state_layer(2 * 128), _FULL) * 2),
    # 3 inputs of 4 x 32 + 2 x 16 channels; 4 states of 32 by 16. Two layers keep nothing.
    _architecture("nemotron_h", state_layer(3 * (4 * 32 + 2 * 16) + 4 * 32 * 16), _FULL),
    # Three convolutions of 4 heads; 4 states of 8 by 8.
    _architecture("kimi_linear", *(state_layer(3 * 3 * 4 * 8 + 4 * 8 * 8),) * 3, _LATENT),
)
#: Those whose layers read their keys themselves, beside the ones above.
KEY_READERS: Final = (
    _architecture("gemma2", *(_FULL,) * _LAYERS),
    _architecture("glm_moe_dsa", *(_LATENT, _full(kv_heads=1, key_dim=64, value_dim=64)) * _LAYERS),
    _architecture("phi", *(_FULL,) * _LAYERS),
    _architecture("phixtral", *(_full(kv_heads=4, key_dim=_HEAD_DIM, value_dim=_HEAD_DIM),) * 4),
    _architecture("plamo", *(_FULL,) * _LAYERS),
    # Three inputs of a convolution over 4 x 32 channels; 4 states of 32 by 16.
    _architecture("plamo2", *(state_layer(3 * 4 * 32 + 4 * 32 * 16), _FULL) * 2),
    _architecture("stablelm", *(_FULL,) * _LAYERS),
)
#: The caches of Qwen 2 and Qwen 3 are those of Llama; by day the 8-bit tests have the deep one.
_LIKE_OTHERS: Final = (QWEN2, QWEN3, QWEN3_DEEP_8_BITS)
BY_DAY: Final = tuple(one for one in ARCHITECTURES if one not in _LIKE_OTHERS)
AT_NIGHT: Final = (*_LIKE_OTHERS, *FURTHER_ARCHITECTURES, *KEY_READERS)
#: For ``parametrize``; ``make test`` leaves them out.
NIGHTLY_ARCHITECTURES: Final = tuple(
    pytest.param(one, marks=pytest.mark.nightly) for one in AT_NIGHT
)
ALL_ARCHITECTURES: Final = (*BY_DAY, *NIGHTLY_ARCHITECTURES)
every_architecture = pytest.mark.parametrize(
    "architecture", ALL_ARCHITECTURES, ids=lambda architecture: architecture.name
)


def every_architecture_and(name: str, values: Mapping[str, object]) -> pytest.MarkDecorator:
    """Parametrize with an architecture and a value: by day each one with one value, in turn."""
    return in_turn(f"architecture, {name}", BY_DAY, values, at_night=AT_NIGHT)


def abilities_in(family: str, *, computes: bool = True) -> ModelAbilities:
    """Return what the engine can do with a family.

    Args:
        family: One that is not in ``NOT_BUILT``.
        computes: Whether logits are computed and compared, as at a load.
    """
    network = network_of(family)
    computes = computes and family not in SHAPES_ONLY
    support = find_row_support(network, computes=computes)
    return abilities_of(network, support, *probed_spec(network))


def cells_of(family: str) -> tuple[str, ...]:
    """Return the cells of a family: one for each ability."""
    names = [one.name for one in fields(ModelAbilities)]
    if family in NOT_BUILT:
        return (NOT_BUILT[family], *("-" for _ in names[1:]))
    found = abilities_in(family)
    return tuple(_cell(getattr(found, name)) for name in names)


def _cell(ability: Ability) -> str:
    return ability.degree if ability.degree is Degree.YES else f"{ability.degree}: {ability.why}"


def table() -> Iterator[str]:
    """Yield the lines of the table: a row for all families with the same cells."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for family in families():
        alike.setdefault(cells_of(family), []).append(f"`{family}`")
    yield f"| families of mlx-lm {mlx_lm.__version__} | {' | '.join(HEADS)} |"
    yield "|---" * (len(HEADS) + 1) + "|"
    for cells, names in sorted(alike.items(), key=_limits):
        yield f"| {' | '.join((', '.join(names), *cells))} |"


def _limits(row: tuple[tuple[str, ...], list[str]]) -> tuple[int, int, tuple[str, ...]]:
    cells, names = row
    return sum(cell != Degree.YES for cell in cells), -len(names), cells


def cells_in(page: str) -> dict[str, tuple[str, ...]]:
    """Return the cells of each family that the page has."""
    found = {}
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        names, *cells = line.strip("| ").split(" | ")
        found.update(dict.fromkeys(re.findall("`([^`]+)`", names), tuple(cells)))
    return found


def with_table(page: str) -> str:
    """Return a page with the present table between its marks."""
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    text = "\n".join((BEGIN, *table(), END))
    return marks.sub(lambda _: text, page)


def main() -> int:
    """Write the present table into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
