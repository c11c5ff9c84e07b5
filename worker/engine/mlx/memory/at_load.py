"""The memory of a model when it is loaded: measures, limits, budget, watch and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import structlog
from mlx.utils import tree_flatten

from domain.kv.contexts import MemoryStats
from domain.kv.plan import (
    AGENTS_DEFAULT,
    CONTEXT_TOKENS_DEFAULT,
    ContextCosts,
    DeviceMemory,
    StepMemory,
    kv_budget,
    size_text,
)
from domain.kv.spec import BLOCK_TOKENS, ModelCacheSpec
from domain.values import ModelCard
from worker.engine.mlx.fingerprint import computation_of
from worker.engine.mlx.kv.probe import (
    ContextSizes,
    FoundRows,
    GrowthSizes,
    checked_spec,
    probe_spec,
)
from worker.engine.mlx.kv.window_cache import UnsupportedCache
from worker.engine.mlx.memory.device import Device, EmbeddingAccount
from worker.engine.mlx.memory.step import StepFile, estimated_step
from worker.engine.mlx.untyped import Network
from worker.engine.ports import ModelLoadError, is_device_error

_log = structlog.get_logger(__name__)


def parameter_bytes(network: Network) -> int:
    """Return the size of a network's weights; evaluates nothing."""
    arrays: list[tuple[str, Any]] = tree_flatten(network.parameters())  # type: ignore[assignment]
    return sum(array.nbytes for _, array in arrays)


def usual_tokens(context_length: int) -> int:
    """Return the length of a context that budgets and reports are made for, in tokens."""
    return min(CONTEXT_TOKENS_DEFAULT, context_length)


def measured_budget(costs: ContextCosts, device: DeviceMemory, block_bytes: int) -> tuple[int, int]:
    """Return the bytes that are left for contexts, and the longest that fits alone, in tokens.

    Args:
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
        is_pinned: Whether ``engine.kv_budget_mb`` sets it.
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


def _gb(size_bytes: int) -> float:
    return round(size_bytes / 1e9, 2)


#: Smallest difference that is no rounding of the allocator and no constant of a library, in bytes.
TOLERANCE_BYTES_MIN = 16 << 20


class MemoryWatch:
    """Finds memory that the accounts do not know, and steps that take more than estimated.

    Between two steps the process should hold the weights, what is accounted (rows, parked segments,
    copies in flight) and at most the working set of the step that is being computed:

        active = weights + accounted + (0 to step) + unknown

    Unknown bytes, and those of a step above its estimate, are withheld from the budget of contexts:
    what no longer fits is to be freed before the next step.

    Args:
        weights_bytes: Bytes in use without any context.
        step_bytes: Estimated working set of a step, which the budget leaves room for; ``None``
            where the budget is pinned.
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
        #: Largest working set of a step, as estimated at load or seen since.
        self.step_bytes = step_bytes or 0

    def withheld_bytes(self, *, active: int, peak: int, accounted: int) -> int:
        """Return the bytes to withhold from the budget. Call once before each step.

        Args:
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


#: A step beyond its estimate is remembered with this part of it as room.
_REMEMBERED_ROOM = 8
#: Freed buffers kept for reuse where the budget is pinned and no step is estimated.
PINNED_CACHE_BYTES = 512 << 20
#: Least share of its longest context that a model keeps beside what is set aside.
CONTEXT_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMemory:
    """The memory of a loaded model.

    Attributes:
        spec: Layers and sizes of its caches; ``None`` where a cache cannot be restored.
        sizes: Sizes of its contexts: ``spec``, or estimates.
        kv_bytes: Budget of all contexts; ``None`` for no limit.
        costs: Weights, caches and steps; the context length is the longest that fits.
        device: The device after the model was loaded; ``None`` where it was not read.
        is_pinned: Whether the settings give the budget.
        withheld: Returns the bytes to withhold from the budget during the next step, given those
            that are accounted; ``None`` where the device is not read.
    """

    spec: ModelCacheSpec | None
    sizes: ContextSizes
    kv_bytes: int | None
    costs: ContextCosts
    device: DeviceMemory | None = None
    is_pinned: bool = True
    withheld: Callable[[int], int] | None = None
    disk_bytes: int | None = None
    why_no_spec: str = ""

    def withheld_bytes(self, accounted: int, rows: FoundRows, uids: Iterable[int]) -> int:
        """Return the bytes to withhold from the budget. Call once before each step."""
        if isinstance(self.sizes, GrowthSizes):
            self.sizes.observe(rows, uids)
        return 0 if self.withheld is None else self.withheld(accounted)

    def complete(self, stats: MemoryStats) -> MemoryStats:
        """Return figures of contexts with those of the weights, and of everything together."""
        weights_bytes = self.costs.weights_bytes
        planned = weights_bytes + self.costs.step.fixed_bytes + stats.budget_bytes
        device_bytes = 0 if self.device is None else self.device.device_bytes
        return replace(stats, weights_bytes=weights_bytes, ceiling_bytes=max(planned, device_bytes))

    def report(self, context_length: int) -> None:
        """Log the memory, with the context length that is in force, in tokens."""
        if self.kv_bytes is not None:
            report_memory(
                replace(self.costs, context_length=context_length),
                budget_bytes=self.kv_bytes,
                is_pinned=self.is_pinned,
                device=self.device,
            )
        if self.spec is None or self.disk_bytes is None:
            return
        tokens = usual_tokens(context_length)
        files_bytes = AGENTS_DEFAULT * self.spec.context_bytes(tokens)
        if files_bytes > self.disk_bytes:
            _log.warning(
                "contexts_exceed_disk",
                why=f"{AGENTS_DEFAULT} contexts of {tokens} tokens take {_gb(files_bytes)} GB of"
                f" files, cache.disk_budget_gb allows {_gb(self.disk_bytes)}",
                advice="raise cache.disk_budget_gb; contexts that are deleted are computed again",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBudget:
    """Makes the budget of a loaded model from the memory of its device.

    Attributes:
        batch: Sequences decoded in one step.
        pinned_bytes: Budget that the settings give; then no step is estimated.
        steps: Remembers steps that took more than their estimate; ``None`` remembers none.
        reserve: Memory for what is computed beside the model; it is granted where the model has
            room beside it.
    """

    device: Device
    batch: int
    pinned_bytes: int | None = None
    steps: StepFile | None = None
    disk_bytes: int | None = None
    reserve: EmbeddingAccount | None = None

    def check_weights(self, model_dir: Path) -> None:
        """Refuse weights that the device cannot hold, before they are read.

        A budget of the settings refuses nothing: memory that is available now is an estimate.

        Raises:
            ModelLoadError: The files of the weights are larger than the memory.
        """
        if self.pinned_bytes is not None:
            return
        memory = self.device.memory()
        size_bytes = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
        if size_bytes > memory.device_bytes:
            msg = (
                f"the model does not fit: its weights take {size_text(size_bytes)},"
                f" {size_text(memory.usable_bytes)} are usable ({memory.source})."
                " Take a smaller model or fewer bits per weight, or close other programs"
            )
            raise ModelLoadError(msg)

    def after_load(
        self,
        network: Network,
        loaded: LoadedMemory,
        *,
        fingerprint: str,
        piece_tokens: int,
        ragged: bool,
    ) -> LoadedMemory:
        """Estimate a step, set the limits of the device and return budget and watch.

        Raises:
            ModelLoadError: Weights and a step leave no room for contexts.
        """
        costs, kv_bytes, step_bytes = loaded.costs, self.pinned_bytes, None
        cache_bytes, key = PINNED_CACHE_BYTES, ""
        if kv_bytes is None:
            key = self._step_key(network, fingerprint, piece_tokens, ragged=ragged)
            step = (None if self.steps is None else self.steps.get(key)) or estimated_step(
                network, loaded.spec, piece_tokens=piece_tokens, batch=self.batch, ragged=ragged
            )
            # A step frees what it took, and the next one takes it again: more need not be kept.
            cache_bytes = step_bytes = step.bytes_at(usual_tokens(costs.context_length))
            costs = replace(costs, step=step)
        mx.clear_cache()
        # The peak of the load would hide those of steps.
        mx.reset_peak_memory()
        memory = self.device.memory()
        if kv_bytes is None:
            block_bytes = loaded.sizes.live_bytes(loaded.sizes.block_tokens)
            kv_bytes, longest = self._measured(costs, memory, block_bytes)
            costs = replace(costs, context_length=longest)
        elif self.reserve is not None:
            left_bytes = self.reserve.beside(memory).usable_bytes
            self.reserve.is_granted = costs.weights_bytes + kv_bytes <= left_bytes
        self.device.limit(memory_bytes=memory.device_bytes, cache_bytes=cache_bytes)
        return replace(
            loaded,
            kv_bytes=kv_bytes,
            costs=costs,
            device=memory,
            is_pinned=self.pinned_bytes is not None,
            withheld=self._watched(key, costs.step, step_bytes, kv_bytes),
        )

    def _watched(
        self, key: str, step: StepMemory, step_bytes: int | None, kv_bytes: int
    ) -> Callable[[int], int]:
        """Return what withholds bytes from the budget, and remembers steps beyond the estimate.

        Args:
            key: Of the step in the file.
            step_bytes: Its size on a context of the usual length; ``None`` without an estimate.
        """
        watch = MemoryWatch(
            weights_bytes=self.device.active_bytes(),
            step_bytes=step_bytes,
            budget_bytes=kv_bytes,
            peak_bytes=self.device.peak_bytes(),
        )
        known_bytes = step_bytes or 0

        def withheld(accounted: int) -> int:
            nonlocal known_bytes
            withheld_bytes = watch.withheld_bytes(
                active=self.device.active_bytes(),
                peak=self.device.peak_bytes(),
                accounted=accounted,
            )
            if self.steps is not None and step_bytes and watch.step_bytes > known_bytes:
                # With some room, so that the file is written a few times and not at each step.
                known_bytes = watch.step_bytes + watch.step_bytes // _REMEMBERED_ROOM
                fixed_bytes = step.fixed_bytes + known_bytes - step_bytes
                self.steps.put(key, replace(step, fixed_bytes=fixed_bytes))
            return withheld_bytes

        return withheld

    def _measured(
        self, costs: ContextCosts, memory: DeviceMemory, block_bytes: int
    ) -> tuple[int, int]:
        """Return budget and longest context, beside the reserve if the model has room then."""
        alone = measured_budget(costs, memory, block_bytes)
        if self.reserve is None:
            return alone
        try:
            beside = measured_budget(costs, self.reserve.beside(memory), block_bytes)
        except ModelLoadError as error:
            why = error.message
        else:
            if beside[1] >= CONTEXT_SHARE_MIN * alone[1]:
                self.reserve.is_granted = True
                return beside
            why = f"the longest context would be {beside[1]} of {alone[1]} tokens"
        _log.warning("embeddings_have_no_room", why=why)
        return alone

    def _step_key(
        self, network: Network, fingerprint: str, piece_tokens: int, *, ragged: bool
    ) -> str:
        shape = f"{piece_tokens} {self.batch} {ragged} mlx {version('mlx')}"
        name = mx.device_info().get("device_name", "")
        weights = parameter_bytes(network)
        return f"{fingerprint} {weights} {computation_of(network)} {name} {shape}"


def _warm_up(network: Network) -> None:
    """Compute one token, so that the first request finds weights and kernels loaded.

    Raises:
        ModelLoadError: The device has no memory for it.
    """
    try:
        mx.eval(network(mx.array([[0]])))
    except Exception as error:
        if is_device_error(error):
            msg = f"the model does not fit: its first step failed: {error}"
            raise ModelLoadError(msg) from error
        raise


def memory_at_load(
    network: Network,
    card: ModelCard,
    *,
    block_tokens: int,
    piece_tokens: int,
    ragged: bool,
    budget: int | DeviceBudget | None,
    beside_bytes: int = 0,
    kv_bits: int = 0,
) -> LoadedMemory:
    """Probe the caches of a network, warm it up and return its memory.

    Args:
        budget: Bytes of all contexts, ``None`` for no limit, or what measures them.
        beside_bytes: What a draft model and what encodes images take.

    Raises:
        ModelLoadError: Weights and a step leave no room for contexts.
    """
    _warm_up(network)
    spec, why_no_spec = probed_spec(network, block_tokens)
    if spec is not None and kv_bits:
        spec = checked_spec(network, spec)
    sizes = spec or GrowthSizes(network, block_tokens=block_tokens, piece_tokens=piece_tokens)
    costs = ContextCosts(
        weights_bytes=parameter_bytes(network) + beside_bytes,
        step=StepMemory(fixed_bytes=0),
        live_bytes=sizes.live_bytes,
        context_length=card.context_length,
    )
    loaded = LoadedMemory(
        spec=spec, sizes=sizes, kv_bytes=None, costs=costs, why_no_spec=why_no_spec
    )
    if isinstance(budget, DeviceBudget):
        return budget.after_load(
            network,
            replace(loaded, disk_bytes=budget.disk_bytes),
            fingerprint=card.fingerprint,
            piece_tokens=piece_tokens,
            ragged=ragged,
        )
    return replace(loaded, kv_bytes=budget)


def probed_spec(
    network: Network, block_tokens: int = BLOCK_TOKENS
) -> tuple[ModelCacheSpec | None, str]:
    """Return what ``probe_spec`` returns, or ``None`` and why it refuses."""
    try:
        return probe_spec(network, block_tokens), ""
    except UnsupportedCache as error:
        return None, str(error)
