"""How many prompt tokens the device computes in one piece."""

from __future__ import annotations

import mlx.core as mx

#: Most tokens of a piece on a GPU, where a pass over few tokens leaves it idle.
GPU_PIECE_TOKENS = 2048
#: Most tokens of a piece on the CPU, where larger pieces are not faster and delay cancellations.
CPU_PIECE_TOKENS = 256


def is_on_gpu() -> bool:
    """Return whether a GPU computes, while this thread prepares the next step."""
    return bool(mx.default_device() != mx.Device(mx.cpu))


def piece_tokens(wanted: int | None) -> int:
    """Return the most tokens of a piece: ``wanted``, or the default of the device."""
    if wanted is not None:
        return wanted
    return GPU_PIECE_TOKENS if is_on_gpu() else CPU_PIECE_TOKENS
