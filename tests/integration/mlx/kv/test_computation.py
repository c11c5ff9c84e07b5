"""Blocks belong to the code and the kind of device that computed them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest

from tests.support.models.blas import use_reference
from tests.support.models.tiny_architectures import LLAMA, QWEN2
from worker.engine.mlx import fingerprint
from worker.engine.mlx.cpu import computes_on_cpu, use_openblas
from worker.engine.mlx.fingerprint import computation_of


def test_computation_names_library_source_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    network = LLAMA.make(mx.float32)
    here = computation_of(network)
    assert here == computation_of(LLAMA.make(mx.float32))
    assert computation_of(QWEN2.make(mx.float32)) != here

    for library in ("mlx", "mlx-lm"):
        versions = {"mlx": version("mlx"), "mlx-lm": version("mlx-lm"), library: "0.0.1"}
        monkeypatch.setattr(fingerprint, "version", versions.__getitem__)
        assert computation_of(network) != here
        monkeypatch.undo()
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert computation_of(network) != here


@pytest.mark.skipif(not computes_on_cpu(), reason="MLX computes on a GPU here")
def test_another_blas_is_another_computation() -> None:
    network = LLAMA.make(mx.float32)
    use_reference()
    before = computation_of(network)
    try:
        assert use_openblas()
        assert computation_of(network) != before
        assert version("scipy-openblas32") in computation_of(network)
    finally:
        use_reference()
    assert computation_of(network) == before


def test_changed_source_of_a_model_is_another_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = LLAMA.make(mx.float32)
    before = computation_of(network)
    module = sys.modules[type(network).__module__]
    changed = tmp_path / "llama.py"
    changed.write_text(Path(str(module.__file__)).read_text() + "\n")
    monkeypatch.setattr(module, "__file__", str(changed))
    assert computation_of(network) != before
