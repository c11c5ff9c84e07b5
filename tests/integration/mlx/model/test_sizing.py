"""Sizes of models from their configuration alone, on real MLX."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import pytest

import worker.demo_model
from domain.kv.plan import ModelFootprint
from domain.kv.spec import LayerKind
from domain.model.registry import DRAFT_HEAD, NO_DRAFTER
from tests.support.models.networks_with_states import QWEN3_5
from tests.support.models.tiny_heads import make_tiny_qwen, random_head, write_shards
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.memory.at_load import parameter_bytes
from worker.engine.mlx.model.draft_head import draft_head, memory_of, read_head
from worker.engine.mlx.model.draft_model import DRAFT_TOKENS_HELD
from worker.engine.mlx.model.sizing import UnsupportedConfig, size_model
from worker.plan import PlanRequest, footprint_of, plan_of

CONFIGS = Path(__file__).parents[3] / "fixtures" / "configs"
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
#: Weights of the tiny model: embedding, attention and mlp of two layers, norms.
TINY_MATRICES = 100 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
TINY_NORMS = 5 * 64


def sized(config: dict[str, Any], bits: int | None = None) -> ModelFootprint:
    return size_model(config, bits=bits, piece_tokens=256, batch=8)


def published(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / name / "config.json").read_text())
    return config


@cache
def size_of(name: str, bits: int | None = None) -> ModelFootprint:
    """Return the sizes of a published model, computed once for all tests."""
    return sized(published(name), bits)


@pytest.mark.parametrize(
    ("name", "bits", "weights_gb"),
    [
        ("Llama-3.1-8B", None, 16.06),
        ("Mistral-Nemo-12B", None, 24.50),
        ("Qwen3-14B", None, 29.54),
        ("Qwen3-14B", 4, 8.31),
        ("Qwen3-30B-A3B", None, 61.06),
        ("Gemma-3-12B", None, 23.53),  # without the vision tower; the head is tied
        ("Gemma-3-27B", None, 54.02),
        ("gpt-oss-20b", None, 13.76),  # experts in MXFP4, the rest in bfloat16
        ("LFM2.5-2.6B", None, 2 * 2.569272320),
        ("GLM-4.7-Flash", None, 2 * 29.94),
        ("Gemma-4-12B", None, 2 * 11.91),  # without what embeds images and sound
        ("Qwen3.8-27B", None, 2 * 26.90),  # without the vision tower and the MTP head
    ],
)
def test_weights_have_the_size_of_the_published_files(
    name: str, bits: int | None, weights_gb: float
) -> None:
    assert size_of(name, bits).weights_bytes / 1e9 == pytest.approx(weights_gb, abs=0.01)


def test_a_model_of_14_billion_weights_takes_no_memory() -> None:
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model = sized(published("Qwen3-14B"))
    assert model.weights_bytes > 29e9
    assert mx.get_peak_memory() - before < 2**20


def test_caches_have_the_layers_of_the_family() -> None:
    qwen, gemma = size_of("Qwen3-14B").spec, size_of("Gemma-3-12B").spec
    assert {layer.kind for layer in qwen.layers} == {LayerKind.FULL}
    assert qwen.live_bytes(1) == 40 * 8 * 256 * 2
    full = [layer for layer in gemma.layers if layer.kind is LayerKind.FULL]
    windows = [layer.window for layer in gemma.layers if layer.kind is LayerKind.SLIDING]
    assert (len(full), windows) == (8, [1024] * 40)


def test_states_are_float32_where_the_reference_computes_them_so() -> None:
    spec = size_of("Qwen3.5-9B").spec
    states = [layer.state_bytes for layer in spec.layers if layer.kind is LayerKind.STATE]
    # 32 value heads of 128 by 128; 3 inputs of the convolution, of all heads, in bfloat16.
    assert states == [32 * 128 * 128 * 4 + 3 * (2 * 16 + 32) * 128 * 2] * 24
    assert sum(layer.token_bytes for layer in spec.layers) == 8 * 2 * 4 * 256 * 2
    convolutions = size_of("LFM2.5-2.6B").spec
    assert [layer.state_bytes for layer in convolutions.layers[:3]] == [2 * 2048 * 2] * 2 + [0]


def test_latent_attention_keeps_one_latent_and_one_rotated_key_of_a_token() -> None:
    spec = size_of("GLM-4.7-Flash").spec
    assert [layer.token_bytes for layer in spec.layers] == [(512 + 64) * 2] * 47


def test_layers_of_gemma_4_have_keys_of_two_widths() -> None:
    spec = size_of("Gemma-4-26B-A4B").spec
    window, full = 2 * 8 * 256 * 2, 2 * 2 * 512 * 2
    assert [layer.token_bytes for layer in spec.layers] == ([window] * 5 + [full]) * 5


def test_the_demo_model_has_the_sizes_of_its_loaded_weights() -> None:
    directory = Path(worker.demo_model.__file__).parent
    network, _ = mlx_lm.utils.load_model(directory)
    model = sized(json.loads((directory / "config.json").read_text()))
    assert model.weights_bytes == parameter_bytes(network)
    assert model.spec == probe_spec(network)


def test_keys_and_values_in_8_bits_let_1_8_times_as_many_contexts_fit() -> None:
    for name in ("Qwen3-14B", "Llama-3.1-8B", "Qwen3-30B-A3B"):
        exact = size_of(name).spec
        model = size_model(published(name), kv_bits=8, piece_tokens=256, batch=8)
        tokens = 20_000
        assert 1.8 * model.spec.live_bytes(tokens) <= exact.live_bytes(tokens)
        assert 1.8 * model.spec.context_bytes(tokens) <= exact.context_bytes(tokens)


def plan_request(model: Path | str, **more: Any) -> PlanRequest:
    return PlanRequest(
        model=str(model),
        memory_bytes=64 << 30,
        agents=5,
        context_tokens=20_000,
        kv_bits=0,
        piece_tokens=256,
        batch=8,
        disk_bytes_per_s=2e9,
        disk_budget_bytes=None,
        **{"bits": None} | more,
    )


def drafter_bytes(model: Path | str, **more: Any) -> int:
    asked = plan_request(model, **more)
    planned = plan_of(asked, footprint_of(asked))
    with_drafter = planned["usable_bytes"] - planned["weights_bytes"] - planned["step_bytes"]
    assert planned["kv_budget_bytes"] == with_drafter - planned["drafter_bytes"]
    return int(planned["drafter_bytes"])


def test_a_head_is_planned_as_the_load_counts_it(tmp_path: Path) -> None:
    network = QWEN3_5.make(mx.float32)
    head = memory_of(network, draft_head(network, random_head(network)))
    model = make_tiny_qwen(tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"dtype": "float32"}
    (model / "config.json").write_text(json.dumps(config))
    weights = sum(array.nbytes for array in read_head(model).values())
    loaded = head.bytes_of(8)
    assert drafter_bytes(model) == weights + 8 * head.row_bytes == loaded
    assert drafter_bytes(model / "config.json", draft=DRAFT_HEAD) == loaded
    assert drafter_bytes(model, draft=NO_DRAFTER) == 0
    # The same files without a head.
    for file in model.glob("model*"):
        file.unlink()
    write_shards(tmp_path / "bare", {"model.norm.weight": mx.ones(3)})
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config))
    assert drafter_bytes(tmp_path / "bare") == 0
    # Without files, what the family brings; a conversion by mlx-lm leaves it out.
    assert drafter_bytes(model, bits=4) == 0
    assert drafter_bytes(model, bits=4, draft=DRAFT_HEAD) == loaded


def test_a_head_that_takes_too_much_of_the_memory_is_planned_only_if_it_is_named() -> None:
    config = CONFIGS / "Qwen3.5-9B"
    asked = [plan_request(config, draft=draft) for draft in (None, DRAFT_HEAD)]
    planned = [
        plan_of(replace(one, memory_bytes=32 << 30), footprint_of(one))["drafter_bytes"]
        for one in asked
    ]
    assert (planned[0], planned[1] > 0) == (0, True)


def test_a_draft_model_is_planned_with_its_caches() -> None:
    small, large = CONFIGS / "Qwen3.5-4B", CONFIGS / "Qwen3.5-9B"
    draft = size_of("Qwen3.5-4B")
    expected = draft.weights_bytes + 8 * draft.spec.live_bytes(DRAFT_TOKENS_HELD)
    assert drafter_bytes(large, draft=str(small)) == expected


def test_an_unquantized_model_keeps_its_dtype() -> None:
    whole = sized(TINY | {"torch_dtype": "float32"})
    half = sized(TINY | {"dtype": "float16"})
    assert whole.weights_bytes == 4 * (TINY_MATRICES + TINY_NORMS)
    assert half.weights_bytes == 2 * (TINY_MATRICES + TINY_NORMS)
    assert (whole.spec.dtype, half.spec.dtype) == ("float32", "float16")


def test_bits_quantize_matrices_in_groups_of_64() -> None:
    model = sized(TINY, bits=4)
    # Half a byte a weight; a scale and a bias of 2 bytes for 64 weights.
    assert model.weights_bytes == TINY_MATRICES // 2 + TINY_MATRICES // 64 * 4 + 2 * TINY_NORMS


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Mistral-Nemo-12B", "Qwen3-14B", "Qwen3-30B-A3B"])
def test_bits_give_the_size_of_a_conversion_by_mlx_lm(name: str) -> None:
    config = published(name)
    model_class, args_class = mlx_lm.utils._get_classes(config)
    network = model_class(args_class.from_dict(config))
    network.set_dtype(mx.bfloat16)
    network, converted = mlx_lm.utils.quantize_model(network, config, group_size=64, bits=4)
    assert sized(config, bits=4).weights_bytes == parameter_bytes(network)
    assert sized(converted).weights_bytes == parameter_bytes(network)


@pytest.mark.parametrize(
    ("override", "bytes_more"),
    [
        ({"bits": 8, "group_size": 64}, 64 * 128 // 2),
        (False, 64 * 128 * 2 - (64 * 128 // 2 + 64 * 128 // 64 * 4)),
    ],
)
def test_a_layer_with_an_override_is_sized_by_it(override: object, bytes_more: int) -> None:
    plain: dict[str, Any] = {"bits": 4, "group_size": 64}
    path = "model.layers.0.mlp.up_proj"
    base = sized(TINY | {"quantization": plain}).weights_bytes
    other = sized(TINY | {"quantization": plain | {path: override}}).weights_bytes
    assert other - base == bytes_more


@pytest.mark.parametrize(
    ("given", "bits_a_weight"),
    [
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "mxfp8"}, 8.25),
        ({"quant_method": "awq", "group_size": 64, "bits": 4}, 4.5),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, 4.5),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 16),
        ({"group_size": 64, "bits": 4}, 4.5),
    ],
)
def test_formats_of_hugging_face_are_mapped_as_mlx_lm_maps_them(
    given: dict[str, Any], bits_a_weight: float
) -> None:
    model = sized(TINY | {"quantization_config": given})
    assert model.weights_bytes == int(TINY_MATRICES * bits_a_weight / 8) + 2 * TINY_NORMS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "no_such_family"}, "mlx-lm has no model type 'no_such_family'"),
        ({"model_type": None}, "no model_type"),
        ({"model_type": "cache"}, "mlx-lm has no model type 'cache'"),  # a module without a model
        ({"architectures": 5}, "cannot be sized"),
        ({"text_config": 7}, "cannot be sized"),
        ({"quantization_config": 7}, "cannot be sized"),
        ({"hidden_size": "wide"}, "cannot be sized"),
        ({"num_hidden_layers": None}, "cannot be sized"),
        ({"model_file": "own.py"}, "its own code"),
        ({"quantization_config": {"quant_method": "hqq"}}, "'hqq' is not supported"),
        ({"quantization": {"bits": 7, "group_size": 64}}, "cannot be sized"),
        ({"quantization": {"bits": 4}}, "cannot be sized"),
        ({"quantization": []}, "cannot be sized"),
        ({"hidden_size": -64}, "cannot be sized"),
    ],
)
def test_a_config_that_cannot_be_sized_is_refused_in_one_line(
    change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedConfig) as refused:
        sized(TINY | change)
    assert reason in refused.value.message
    assert "\n" not in refused.value.message


def test_bits_for_a_quantized_model_are_refused() -> None:
    with pytest.raises(UnsupportedConfig, match="already"):
        sized(published("gpt-oss-20b"), bits=4)
