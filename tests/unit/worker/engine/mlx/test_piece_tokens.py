"""Pieces of a prompt are larger on a GPU."""

from __future__ import annotations

import mlx.core as mx
import pytest

from worker.engine.mlx.cpu import is_on_gpu
from worker.engine.mlx.rows.running_sequences import (
    CPU_PIECE_TOKENS,
    GPU_PIECE_TOKENS,
    piece_tokens,
)


@pytest.mark.parametrize(
    ("device", "default"), [(mx.cpu, CPU_PIECE_TOKENS), (mx.gpu, GPU_PIECE_TOKENS)]
)
def test_default_depends_on_the_device(
    monkeypatch: pytest.MonkeyPatch, device: mx.DeviceType, default: int
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(device))
    assert is_on_gpu() is (device == mx.gpu)
    assert piece_tokens(None) == default
    assert piece_tokens(100) == 100
