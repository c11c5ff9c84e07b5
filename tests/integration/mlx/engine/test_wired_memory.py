"""Memory is not wired: a wired limit has crashed machines."""

from __future__ import annotations

from pathlib import Path

import mlx_lm.utils
import pytest

from domain.model.registry import ModelEntry
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner


def test_a_load_wires_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(
        mlx_lm.utils, "maybe_set_recommended_wired_limit", lambda: calls.append(None)
    )
    source = ModelEntry(name="tiny", source=str(make_tiny_llama(tmp_path / "model")))
    # Not closed: that clears the streams of this thread, which other tests use.
    runner = BatchRunner(load_weights=lambda: load_weights(source), prefill_step_tokens=8)
    runner.load()
    assert not calls
