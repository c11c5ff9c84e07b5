"""Logs at the start what a loaded model and its contexts take; arithmetic only."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import structlog
from mlx.utils import tree_flatten

from domain.kv.plan import AGENTS_DEFAULT, CONTEXT_TOKENS_DEFAULT
from domain.kv.spec import ModelCacheSpec

_log = structlog.get_logger(__name__)


def parameter_bytes(network: Any) -> int:  # noqa: ANN401 - mlx-lm ships no types
    """Return the size of a network's weights; evaluates nothing."""
    arrays: list[tuple[str, Any]] = tree_flatten(network.parameters())  # type: ignore[assignment]
    return sum(array.nbytes for _, array in arrays)


def recommended_working_set() -> int | None:
    """Return the bytes that Metal recommends to a process here; ``None`` without Metal."""
    if not mx.metal.is_available():
        return None
    return int(mx.device_info()["max_recommended_working_set_size"])


def report_memory(
    network: Any,  # noqa: ANN401 - mlx-lm ships no types
    spec: ModelCacheSpec,
    *,
    budget_bytes: int,
    context_length: int,
) -> None:
    """Log the memory of a loaded model, and warn where the usual contexts do not fit.

    Args:
        network: The model.
        spec: Layers and sizes of its caches.
        budget_bytes: Budget of all contexts.
        context_length: Longest context that the service accepts, in tokens.
    """
    tokens = min(CONTEXT_TOKENS_DEFAULT, context_length)
    context_bytes, weights_bytes = spec.live_bytes(tokens), parameter_bytes(network)
    resident = min(AGENTS_DEFAULT, budget_bytes // context_bytes)
    _log.info(
        "memory_planned",
        weights_gb=_gb(weights_bytes),
        kv_budget_gb=_gb(budget_bytes),
        context_tokens=tokens,
        context_gb=_gb(context_bytes),
        contexts_in_memory=f"{resident} of {AGENTS_DEFAULT}",
    )
    if resident < AGENTS_DEFAULT:
        _log.warning(
            "contexts_exceed_memory",
            why=f"{resident} of {AGENTS_DEFAULT} contexts of {tokens} tokens fit in the KV budget",
            advice="raise engine.kv_budget_mb as far as `semantic models plan` allows",
        )
    device_bytes = recommended_working_set()
    if device_bytes is not None and weights_bytes + budget_bytes > device_bytes:
        _log.warning(
            "budget_exceeds_device",
            why=f"weights and KV budget exceed the {_gb(device_bytes)} GB that Metal recommends",
            advice="lower engine.kv_budget_mb",
        )


def _gb(size_bytes: int) -> float:
    return round(size_bytes / 1e9, 2)
