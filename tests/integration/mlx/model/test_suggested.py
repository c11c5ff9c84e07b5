"""The table of suggested models against their published shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from domain.kv.plan import (
    AGENTS_DEFAULT,
    CONTEXT_TOKENS_DEFAULT,
    ModelFootprint,
    Workload,
    plan_memory,
    planned_mac,
)
from ops.models.hub_cache import is_hub_id
from ops.models.suggest import SUGGESTED, SuggestedModel, usable_memory
from worker.engine.mlx.model.sizing import size_model

CONFIGS = Path(__file__).parents[3] / "fixtures" / "configs"
#: The published shape of each, and the bits of its weights where they are converted.
SHAPES: dict[str, tuple[str, int | None]] = {
    "mlx-community/Qwen3.5-4B-4bit": ("Qwen3.5-4B", 4),
    "mlx-community/Qwen3.5-9B-4bit": ("Qwen3.5-9B", 4),
    "openai/gpt-oss-20b": ("gpt-oss-20b", None),
    "mlx-community/gemma-4-26b-a4b-it-4bit": ("Gemma-4-26B-A4B", 4),
    "mlx-community/Qwen3.6-27B-4bit": ("Qwen3.8-27B", 4),
    "mlx-community/GLM-4.7-Flash-4bit": ("GLM-4.7-Flash", 4),
    "mlx-community/Qwen3.6-35B-A3B-4bit": ("Qwen3.6-35B-A3B", 4),
}


def footprint(hub_id: str) -> ModelFootprint:
    name, bits = SHAPES[hub_id]
    config = json.loads((CONFIGS / name / "config.json").read_text())
    return size_model(config, bits=bits, piece_tokens=256, batch=8)


@pytest.mark.parametrize("one", SUGGESTED, ids=lambda one: one.hub_id)
def test_the_sizes_are_those_of_the_planner(one: SuggestedModel) -> None:
    model, tokens = footprint(one.hub_id), CONTEXT_TOKENS_DEFAULT
    assert is_hub_id(one.hub_id)
    assert (one.weights_bytes, one.context_length) == (model.weights_bytes, model.context_length)
    assert one.step_bytes == model.step.bytes_at(tokens)
    assert one.context_bytes == model.spec.live_bytes(tokens)
    assert one.first_bytes == model.spec.budget_bytes(tokens)
    work = Workload(agents=AGENTS_DEFAULT, context_tokens=tokens, disk_bytes_per_s=2e9)
    for memory in (8, 16, 24, 32, 48, 64, 128):
        planned = plan_memory(model, work, planned_mac(memory << 30)).resident_contexts
        assert one.contexts_in(usable_memory(memory << 30, is_mac=True)) == planned, memory


def test_a_larger_model_comes_later() -> None:
    sizes = [one.weights_bytes for one in SUGGESTED]
    assert sizes == sorted(sizes)
