"""The identity of the code and device that compute keys and values."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx


def computation_of(network: Any) -> str:  # noqa: ANN401 - mlx-lm ships no types
    """Return what computes a network's keys and values: library, source code, kind of device.

    A block of another version of mlx-lm, of another implementation of the architecture, or of
    another kind of device may hold other values for the same tokens.
    """
    source = sys.modules[type(network).__module__].__file__
    assert source is not None, "a model class is defined in a file"
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    device = mx.default_device().type
    return f"mlx-lm {version('mlx-lm')} {digest} {device.name}"
