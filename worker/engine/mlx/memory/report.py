"""The memory of a loaded model: its budget, the report at the start, and the watch of accounts."""

from __future__ import annotations

from typing import Any

import structlog
from mlx.utils import tree_flatten

from domain.kv.plan import (
    AGENTS_DEFAULT,
    CONTEXT_TOKENS_DEFAULT,
    ContextCosts,
    DeviceMemory,
    kv_budget,
    size_text,
)
from worker.engine.ports import ModelLoadError

_log = structlog.get_logger(__name__)


def parameter_bytes(network: Any) -> int:  # noqa: ANN401 - mlx-lm ships no types
    """Return the size of a network's weights; evaluates nothing."""
    arrays: list[tuple[str, Any]] = tree_flatten(network.parameters())  # type: ignore[assignment]
    return sum(array.nbytes for _, array in arrays)


def usual_tokens(context_length: int) -> int:
    """Return the length of a context that budgets and reports are made for, in tokens."""
    return min(CONTEXT_TOKENS_DEFAULT, context_length)


def measured_budget(costs: ContextCosts, device: DeviceMemory, block_bytes: int) -> tuple[int, int]:
    """Return the bytes that are left for contexts, and the longest that fits alone, in tokens.

    Args:
        costs: Weights, caches and measured steps of the model.
        device: The memory, with what this process holds.
        block_bytes: Size of the shortest context that is of use.

    Raises:
        ModelLoadError: Less than that is left; the message has all terms.
    """
    tokens = usual_tokens(costs.context_length)
    _, longest = kv_budget(costs, device, tokens)
    if longest:
        # Longer contexts are not accepted, so no step is on one.
        tokens = min(tokens, longest)
    budget_bytes, _ = kv_budget(costs, device, tokens)
    step_bytes = costs.step.bytes_at(tokens)
    if budget_bytes < block_bytes or not longest:
        msg = (
            f"the model does not fit: {size_text(device.usable_bytes)} are usable"
            f" ({device.source}), the weights take {size_text(costs.weights_bytes)} and a step"
            f" {size_text(step_bytes)}, so that {size_text(budget_bytes)} are left for contexts."
            " Take a smaller model or fewer bits per weight, close other programs, or set"
            " engine.kv_budget_mb"
        )
        raise ModelLoadError(msg)
    return budget_bytes, longest


def report_memory(
    costs: ContextCosts, *, budget_bytes: int, is_pinned: bool, device: DeviceMemory | None
) -> None:
    """Log the memory of a loaded model, and warn where the usual contexts do not fit.

    Args:
        costs: Weights, caches and steps of the model; the context length is the one in force.
        budget_bytes: Budget of all contexts.
        is_pinned: Whether ``engine.kv_budget_mb`` sets it.
        device: The memory; ``None`` where it was not read.
    """
    tokens = usual_tokens(costs.context_length)
    context_bytes, step_bytes = costs.live_bytes(tokens), costs.step.bytes_at(tokens)
    resident = min(AGENTS_DEFAULT, budget_bytes // max(1, context_bytes))
    on_device: dict[str, float | str] = {}
    if device is not None:
        on_device = {"usable_gb": _gb(device.usable_bytes), "usable": device.source}
    if not is_pinned:
        on_device["step_gb"] = _gb(step_bytes)
    _log.info(
        "memory_planned",
        **on_device,
        weights_gb=_gb(costs.weights_bytes),
        kv_budget_gb=_gb(budget_bytes),
        kv_budget="engine.kv_budget_mb" if is_pinned else "usable - weights - step",
        context_tokens=tokens,
        context_gb=_gb(context_bytes),
        contexts_in_memory=f"{resident} of {AGENTS_DEFAULT}",
    )
    if resident < AGENTS_DEFAULT:
        _log.warning(
            "contexts_exceed_memory",
            why=f"{resident} of {AGENTS_DEFAULT} contexts of {tokens} tokens fit in the KV budget",
            advice="raise engine.kv_budget_mb as far as `semantic models plan` allows"
            if is_pinned
            else "other contexts are read back from the disk; `semantic models plan` compares",
        )
    taken = costs.weights_bytes + step_bytes + budget_bytes
    if device is not None and taken > device.device_bytes:
        _log.warning(
            "budget_exceeds_device",
            why=f"weights, a step and the KV budget take {_gb(taken)} GB of"
            f" {_gb(device.device_bytes)} GB",
            advice="lower engine.kv_budget_mb",
        )


def report_disk(stored_bytes: int, *, context_length: int, budget_bytes: int) -> None:
    """Warn where the disk does not hold the usual contexts.

    Args:
        stored_bytes: Files of one context of the usual length.
        context_length: Longest context that the service accepts, in tokens.
        budget_bytes: Limit of all files.
    """
    if AGENTS_DEFAULT * stored_bytes <= budget_bytes:
        return
    _log.warning(
        "contexts_exceed_disk",
        why=f"{AGENTS_DEFAULT} contexts of {usual_tokens(context_length)} tokens take"
        f" {_gb(AGENTS_DEFAULT * stored_bytes)} GB of files, cache.disk_budget_gb allows"
        f" {_gb(budget_bytes)}",
        advice="raise cache.disk_budget_gb; contexts that are deleted are computed again",
    )


def _gb(size_bytes: int) -> float:
    return round(size_bytes / 1e9, 2)


#: Smallest difference that is no rounding of the allocator and no constant of a library, in bytes.
TOLERANCE_BYTES_MIN = 16 << 20


class MemoryWatch:
    """Finds memory that the accounts do not know, and steps that take more than was measured.

    Between two steps the process should hold the weights, what is accounted (rows, parked segments,
    copies in flight) and at most the working set of the step that is being computed:

        active = weights + accounted + (0 to step) + unknown

    Unknown bytes, and those of a step above its measure, are withheld from the budget of contexts:
    what no longer fits is to be freed before the next step.

    Args:
        weights_bytes: Bytes in use without any context.
        step_bytes: Measured working set of a step, which the budget leaves room for; ``None`` where
            none was measured and the budget is pinned.
        budget_bytes: Budget of all contexts.
        peak_bytes: The highest peak so far.
    """

    def __init__(
        self,
        *,
        weights_bytes: int,
        step_bytes: int | None,
        budget_bytes: int,
        peak_bytes: int = 0,
    ) -> None:
        assert min(weights_bytes, step_bytes or 0, budget_bytes) >= 0, "sizes are not negative"
        self._weights_bytes = weights_bytes
        self._planned_step_bytes = step_bytes
        self._budget_bytes = budget_bytes
        self._peak_bytes = peak_bytes
        self._active_bytes = weights_bytes
        self._is_over = False
        #: Largest working set of a step, as measured at load or seen since.
        self.step_bytes = step_bytes or 0

    def withheld_bytes(self, *, active: int, peak: int, accounted: int) -> int:
        """Return the bytes to withhold from the budget. Call once before each step.

        Args:
            active: Bytes in use.
            peak: The most that was in use since any moment before the last call.
            accounted: Bytes of rows, parked segments and copies in flight.
        """
        self._correct_step(active, peak)
        tolerance = max(self.step_bytes, TOLERANCE_BYTES_MIN)
        unknown = max(0, active - self._weights_bytes - accounted - tolerance)
        planned = self._planned_step_bytes
        longer_step = 0 if planned is None else self.step_bytes - planned
        withheld = unknown + longer_step
        self._report(unknown, max(0, accounted + withheld - self._budget_bytes))
        return withheld

    def _correct_step(self, active: int, peak: int) -> None:
        """Learn from a new highest peak; it belongs to the step since the last call."""
        if peak > self._peak_bytes:
            # Contexts that grew in between are in use now, those that ended were before.
            self.step_bytes = max(self.step_bytes, peak - max(active, self._active_bytes))
        # A lower peak was reset by a reader of it.
        self._peak_bytes, self._active_bytes = peak, active

    def _report(self, unknown: int, over: int) -> None:
        """Log the begin of each episode."""
        if (unknown > 0 or over > 0) and not self._is_over:
            _log.warning(
                "memory_over_accounts",
                unknown_mb=unknown >> 20,
                shed_mb=over >> 20,
                step_mb=self.step_bytes >> 20,
                planned_step_mb=(self._planned_step_bytes or 0) >> 20,
            )
        self._is_over = unknown > 0 or over > 0
