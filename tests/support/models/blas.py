"""The BLAS that MLX calls in a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import mlx.core as mx

from worker.engine.mlx.cpu import (
    BlasSlot,
    computes_on_cpu,
    in_single_precision,
    use_openblas,
)
from worker.engine.mlx.memory.device import ProcessDevice


def use_reference() -> None:
    """Let MLX multiply with its own BLAS, which is slow; its sums do not depend on the rows."""
    one = mx.ones((2, 2))
    mx.eval(one @ one)  # the linker binds the function at its first call
    with suppress(LookupError, OSError):
        slot = BlasSlot()
        slot.point_to(slot.reference)


@contextmanager
def as_served(network: Any) -> Iterator[None]:
    """Let a network compute as in the service, where MLX has no GPU: fast, and in float32."""
    if not computes_on_cpu():
        yield
        return
    use_openblas()
    in_single_precision(network, ProcessDevice().memory().usable_bytes)
    try:
        yield
    finally:
        use_reference()
