"""What the engine logs about its memory when a model has been loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.linear import Linear
from structlog.testing import capture_logs

import worker.demo_model
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx import memory_report
from worker.engine.mlx.memory_report import report_memory
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner

#: 1 kB a token, so 20 MB for a context of 20,000 tokens.
SPEC = ModelCacheSpec(
    layers=(LayerSpec(kind=LayerKind.FULL, kv_heads=5, key_dim=50, value_dim=50, element_bytes=2),),
    dtype="float16",
)
MB = 10**6


def reported(budget_mb: int, context_length: int = 100_000) -> list[Any]:
    network = Linear(1000, 2500, bias=False)  # 10 MB in float32
    with capture_logs() as lines:
        report_memory(network, SPEC, budget_bytes=budget_mb * MB, context_length=context_length)
    return lines


def test_contexts_that_fit_are_reported_without_a_warning() -> None:
    (line,) = reported(100)
    assert line == {
        "event": "memory_planned",
        "log_level": "info",
        "weights_gb": 0.01,
        "kv_budget_gb": 0.1,
        "context_tokens": 20_000,
        "context_gb": 0.02,
        "contexts_in_memory": "5 of 5",
    }


def test_contexts_that_do_not_fit_together_are_warned_of() -> None:
    line, warning = reported(99)
    assert line["contexts_in_memory"] == "4 of 5"
    assert (warning["event"], warning["log_level"]) == ("contexts_exceed_memory", "warning")
    assert warning["why"] == "4 of 5 contexts of 20000 tokens fit in the KV budget"


def test_contexts_are_at_most_as_long_as_the_service_accepts() -> None:
    (line,) = reported(5, context_length=1000)
    assert (line["context_tokens"], line["contexts_in_memory"]) == (1000, "5 of 5")


def test_a_budget_beyond_the_device_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_report, "recommended_working_set", lambda: 110 * MB)
    assert len(reported(100)) == 1
    assert reported(101)[-1]["event"] == "budget_exceeds_device"


@pytest.mark.parametrize("on_metal", [True, False])
def test_the_working_set_is_that_of_metal(
    monkeypatch: pytest.MonkeyPatch, *, on_metal: bool
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: on_metal)
    info = {"max_recommended_working_set_size": 7}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    assert memory_report.recommended_working_set() == (7 if on_metal else None)


def test_a_loaded_model_is_reported() -> None:
    source = ModelSource(id=str(Path(worker.demo_model.__file__).parent))
    runner = BatchRunner(
        load_weights=lambda: load_weights(source), prefill_step_tokens=64, kv_budget_bytes=2**30
    )
    with capture_logs() as lines:
        runner.load()
    (line,) = [line for line in lines if line["event"] == "memory_planned"]
    assert line["kv_budget_gb"] == 1.07
