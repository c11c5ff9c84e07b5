"""What the engine can do with each family of mlx-lm, and the page with it."""

from __future__ import annotations

import json

import mlx.core as mx
import mlx_lm.utils
import pytest
from structlog.testing import capture_logs

from bench.demo_model.render import MODEL_DIR
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from domain.values import Degree
from tests.support.models.families import (
    BY_PIECES,
    FURTHER_ARCHITECTURES,
    NOT_BUILT,
    PAGE,
    SHAPES_ONLY,
    abilities_in,
    cells_in,
    cells_of,
    config_of,
    families,
    network_of,
)
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.networks_with_states import MAMBA
from tests.support.models.runner_probe import BLOCK, Bench
from tests.support.models.tiny_architectures import ARCHITECTURES, LLAMA, Architecture
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.model.sizing import size_model

#: One for each kind of cache, and for each reason that rows decode one by one.
SAMPLE = ("deepseek_v32", "gemma3n", "glm4_moe_lite", "gpt_bigcode", "llama4", "mamba2", "qwen3_5")
#: One for each kind of cache; their tokens are compared in ``make test``.
KINDS = {architecture.name for architecture in FURTHER_ARCHITECTURES}
ON_PAGE = cells_in(PAGE.read_text())


def test_page_has_every_family_of_the_installed_mlx_lm() -> None:
    assert set(ON_PAGE) == set(families())
    assert f"| families of mlx-lm {mlx_lm.__version__} |" in PAGE.read_text()


@pytest.mark.parametrize("family", SAMPLE)
def test_page_has_what_the_engine_finds(family: str) -> None:
    assert ON_PAGE[family] == cells_of(family)


def test_every_limit_on_the_page_has_its_reason() -> None:
    abilities = [cell for family in ON_PAGE.keys() - NOT_BUILT.keys() for cell in ON_PAGE[family]]
    assert [cell for cell in abilities if cell != "yes" and not cell.partition(": ")[2]] == []


@pytest.mark.nightly
@pytest.mark.parametrize("family", sorted(ON_PAGE.keys() - set(SAMPLE)))
def test_page_has_what_the_engine_finds_in_every_other_family(family: str) -> None:
    assert ON_PAGE[family] == cells_of(family)


@pytest.mark.nightly
@pytest.mark.parametrize("family", sorted(ON_PAGE.keys() - NOT_BUILT.keys()))
def test_shapes_alone_show_what_the_logits_show(family: str) -> None:
    assert abilities_in(family, computes=False) == abilities_in(family)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in KINDS else pytest.mark.nightly)
        for name in sorted(ON_PAGE.keys() - NOT_BUILT.keys() - BY_PIECES.keys() - SHAPES_ONLY)
    ],
)
def test_tokens_are_the_same_alone_together_and_after_reuse(family: str) -> None:
    network = network_of(family)
    prompts = [random_tokens(length, length) for length in (5, 4 * BLOCK + 1)]
    cold = Bench(LLAMA, network=network, budget_bytes=None)
    expected = [cold.run_alone(prompt, 8).tokens for prompt in prompts]
    warm = Bench(LLAMA, network=network, step_tokens=2 * BLOCK)
    runs = [warm.join(prompt, 8) for prompt in prompts]
    warm.finish()
    assert [run.tokens for run in runs] == expected
    for prompt, answer in zip(prompts, expected, strict=True):
        turn = [*prompt, *answer, 3, 4]
        assert warm.run_alone(turn, 8).tokens == cold.run_alone(turn, 8).tokens


@pytest.mark.parametrize(
    "architecture", [*ARCHITECTURES, *FURTHER_ARCHITECTURES], ids=lambda one: one.name
)
def test_caches_have_the_layers_that_are_derived_by_hand(architecture: Architecture) -> None:
    assert probe_spec(architecture.make(mx.float32)).layers == architecture.layers


def test_caches_of_the_demo_model_have_the_layers_derived_by_hand_from_its_configuration() -> None:
    config = json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))
    windows = [
        config["sliding_window"] if kind.startswith("sliding") else 0
        for kind in config["layer_types"]
    ]
    heads, dim = config["num_key_value_heads"], config["head_dim"]
    network, *_ = mlx_lm.utils.load(str(MODEL_DIR))
    assert probe_spec(network) == ModelCacheSpec(
        layers=tuple(
            LayerSpec(
                kind=LayerKind.SLIDING if window else LayerKind.FULL,
                kv_heads=heads,
                key_dim=dim,
                value_dim=dim,
                element_bytes=2,
                window=window,
            )
            for window in windows
        ),
        dtype=config["torch_dtype"],
    )


def test_a_plan_has_what_a_load_finds() -> None:
    planned = size_model(config_of("qwen3_5"), piece_tokens=256, batch=8)
    assert planned.abilities == abilities_in("qwen3_5")


def test_a_load_warns_of_what_makes_a_model_slow() -> None:
    with capture_logs() as lines:
        card = Bench(LLAMA, network=network_of("gpt_bigcode")).model.card
    found = {line["event"]: line for line in lines}
    why = found["rows_computed_one_by_one"]["why"]
    assert why.startswith("decodes row by row, as its layers handle keys and values themselves")
    assert found["rows_computed_one_by_one"]["log_level"] == "warning"
    assert found["speculation_off"]["why"] == "its rows are computed one by one"
    assert card.abilities is not None
    assert (card.abilities.batched_rows.degree, card.abilities.batched_rows.why) == (Degree.NO, why)


def test_a_load_logs_why_nothing_is_drafted() -> None:
    with capture_logs() as lines:
        bench = Bench(MAMBA)
    found = {line["event"]: line for line in lines}
    why = found["speculation_off"]["why"]
    assert why.startswith("the states of its layers cannot be chosen")
    assert not {"rows_computed_one_by_one", "prefix_cache_off"} & set(found)
    assert bench.runner.sequences._rows._speculation is None
