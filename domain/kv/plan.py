"""Plan the memory of a model and its contexts before the weights are downloaded.

The plan counts each token of each context once: in memory while the context is resident, and on the
disk. It assumes that the contexts take turns and that all have the same length:

    device     = memory that the GPU may use
    usable     = the part of it that is planned, usually 0.9
    KV budget  = usable - weights - drafter - working set of one step
    resident   = (KV budget - copies in flight - one checkpoint) // live bytes of one context
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from domain.kv.spec import LayerKind, ModelCacheSpec
from domain.values import ModelAbilities

#: The workload that is planned where none is given: a few coding agents with long prompts.
AGENTS_DEFAULT = 5
CONTEXT_TOKENS_DEFAULT = 20_000
_GIB = 1 << 30
#: From this memory on, Metal recommends 3/4 of it as a working set; below, 2/3. Published values of
#: ``recommendedMaxWorkingSetSize``: 10.7 of 16 GiB, 16 of 24, 21.3 of 32, 27 of 36, 48 of 64, and
#: 96 to 107 of 128.
_LARGE_MAC_BYTES = 36 * _GIB
#: Smaller sizes are written in MB, and smaller ones again in kB.
_GB_BYTES_MIN, _MB_BYTES_MIN = 10**8, 10**5
#: A head for drafts that is not named takes at most this share of the memory that the model leaves.
HEAD_SHARE_MAX = 0.1
#: Share of the device that weights, steps and contexts take by plan, in tenths.
_USED_TENTHS = 9


def size_text(size_bytes: float) -> str:
    """Return a size for people: GB of 10^9 bytes, MB below 100 MB, or kB below 100 kB."""
    if size_bytes < _MB_BYTES_MIN:
        return f"{size_bytes / 1e3:,.1f} kB"
    if size_bytes < _GB_BYTES_MIN:
        return f"{size_bytes / 1e6:,.1f} MB"
    return f"{size_bytes / 1e9:,.1f} GB"


def metal_working_set(memory_bytes: int) -> int:
    """Return an estimate of the working set that Metal recommends on a Mac, in bytes.

    Args:
        memory_bytes: Unified memory of the machine.
    """
    assert memory_bytes >= 0, "memory has a size"
    if memory_bytes < _LARGE_MAC_BYTES:
        return memory_bytes * 2 // 3
    return memory_bytes * 3 // 4


def planned_share(size_bytes: int) -> int:
    """Return the part of a memory that is planned; the rest is left to steps that exceed theirs."""
    return size_bytes * _USED_TENTHS // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of a machine.

    Attributes:
        device_bytes: The part that weights, steps and contexts may take, never exceeded.
        usable_bytes: The part of ``device_bytes`` that is planned.
        source: What limits ``usable_bytes``.
    """

    memory_bytes: int
    device_bytes: int
    usable_bytes: int
    source: str

    def __post_init__(self) -> None:
        assert 0 <= self.usable_bytes <= self.device_bytes, "a part of the device is usable"


def planned_mac(memory_bytes: int) -> DeviceMemory:
    """Return the memory of a Mac of that size."""
    device_bytes = metal_working_set(memory_bytes)
    return DeviceMemory(
        memory_bytes=memory_bytes,
        device_bytes=device_bytes,
        usable_bytes=planned_share(device_bytes),
        source="0.9 of what Metal recommends, estimated",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Working set of one step: activations, attention scores and logits.

    Attributes:
        fixed_bytes: Part that does not depend on the length of the context.
        token_bytes: Part for each token of the context.
    """

    fixed_bytes: int
    token_bytes: int = 0

    def bytes_at(self, tokens: int) -> int:
        """Return the working set of a step on a context of ``tokens``."""
        return self.fixed_bytes + self.token_bytes * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterMemory:
    """Memory that a drafter takes.

    Attributes:
        row_bytes: Most that it keeps of a running sequence.
    """

    weights_bytes: int
    row_bytes: int

    def bytes_of(self, rows: int) -> int:
        """Return what it takes beside so many running sequences."""
        return self.weights_bytes + rows * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFootprint:
    """Memory that a model takes.

    Attributes:
        context_length: Longest context that the model reads, in tokens.
        abilities: What the engine can do with it.
        head: What the head for drafts takes that the weights of its family bring.
        drafter_bytes: What drafts beside the model, and is loaded with it.
    """

    weights_bytes: int
    spec: ModelCacheSpec
    step: StepMemory
    context_length: int
    abilities: ModelAbilities = ModelAbilities()
    head: DrafterMemory | None = None
    drafter_bytes: int = 0

    @property
    def loaded_bytes(self) -> int:
        """Return what stays in memory beside contexts: the weights, and what drafts."""
        return self.weights_bytes + self.drafter_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the machine shall hold.

    Attributes:
        agents: Contexts that take turns.
        context_tokens: Length of each.
        disk_bytes_per_s: Rate at which a context is read back.
        disk_budget_bytes: Limit of the block files; ``None`` for no limit.
    """

    agents: int
    context_tokens: int
    disk_bytes_per_s: float
    disk_budget_bytes: int | None = None

    def __post_init__(self) -> None:
        assert self.agents > 0, "an agent at least"
        assert self.context_tokens > 0, "a context has tokens"
        assert self.disk_bytes_per_s > 0, "a disk has a rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory of a model and its contexts on one device; sizes in bytes.

    Attributes:
        drafter_bytes: What drafts beside the model, with what it keeps of running sequences.
        step_bytes: Working set of one step on a context of the planned length.
        kv_budget_bytes: What remains for contexts; 0 where nothing does.
        kv_token_bytes: Keys and values of one token in the layers with full attention.
        kv_fixed_bytes: Windows and states of one context of the planned length.
        resident_contexts: Contexts that fit in memory together, at most ``agents``.
        longest_context_tokens: Longest context that fits alone, at most the model's own.
        disk_bytes: Block files of all contexts.
        restored_bytes: Block files read at a switch to a context that is not resident; 0 where all
            are resident.
        restored_s: Seconds to read them.
        fits: Whether one context of the planned length fits.
        notes: What does not fit, and what follows from it, as sentences.
    """

    device_bytes: int
    usable_bytes: int
    weights_bytes: int
    drafter_bytes: int
    step_bytes: int
    kv_budget_bytes: int
    kv_token_bytes: int
    kv_fixed_bytes: int
    agents: int
    context_tokens: int
    context_bytes: int
    resident_contexts: int
    longest_context_tokens: int
    disk_bytes: int
    restored_bytes: int
    restored_s: float
    fits: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCosts:
    """What the contexts of a model share the memory with, and what they take.

    Attributes:
        live_bytes: From the tokens of a context to the bytes of its caches, or of the budget that
            it needs.
    """

    weights_bytes: int
    step: StepMemory
    live_bytes: Callable[[int], int]
    context_length: int


def kv_budget(costs: ContextCosts, device: DeviceMemory, tokens: int) -> tuple[int, int]:
    """Return the bytes for contexts, and the longest context that fits alone, in tokens.

    The step that the budget leaves room for is one on a context of ``tokens``. A step on the
    longest context may take more, but together with a full budget never more than the device has.
    Both are 0 where the weights and a step leave nothing.

    Args:
        tokens: Usual length of a context.
    """
    assert tokens > 0, "a context has tokens"
    step, beside_weights = costs.step, device.usable_bytes - costs.weights_bytes
    # The free memory falls and the context grows with its length, so a bisection finds the end.
    longest = bisect_right(
        range(1, costs.context_length + 1),
        beside_weights,
        key=lambda length: costs.live_bytes(length) + step.bytes_at(length),
    )
    hard = device.device_bytes - costs.weights_bytes - step.bytes_at(max(tokens, longest))
    return max(0, min(beside_weights - step.bytes_at(tokens), hard)), longest


def plan_memory(model: ModelFootprint, workload: Workload, device: DeviceMemory) -> MemoryPlan:
    """Return the plan of a model on a device."""
    arithmetic = _Arithmetic(model, workload, device)
    tokens, context_bytes = workload.context_tokens, arithmetic.context_bytes
    fits = arithmetic.longest >= tokens
    resident = min(workload.agents, arithmetic.contexts // context_bytes) if fits else 0
    moves = fits and resident < workload.agents
    restored_bytes = model.spec.stored_bytes(tokens) if moves else 0
    return MemoryPlan(
        device_bytes=device.device_bytes,
        usable_bytes=device.usable_bytes,
        weights_bytes=model.weights_bytes,
        drafter_bytes=model.drafter_bytes,
        step_bytes=model.step.bytes_at(tokens),
        kv_budget_bytes=arithmetic.budget,
        kv_token_bytes=arithmetic.token_bytes,
        kv_fixed_bytes=context_bytes - arithmetic.token_bytes * tokens,
        agents=workload.agents,
        context_tokens=tokens,
        context_bytes=context_bytes,
        resident_contexts=resident,
        longest_context_tokens=arithmetic.longest,
        disk_bytes=arithmetic.disk_bytes,
        restored_bytes=restored_bytes,
        restored_s=restored_bytes / workload.disk_bytes_per_s,
        fits=fits,
        notes=tuple(_notes(arithmetic, resident)),
    )


class _Arithmetic:
    """The sizes that the plan and its notes share."""

    def __init__(self, model: ModelFootprint, workload: Workload, device: DeviceMemory) -> None:
        tokens = workload.context_tokens
        self.model = model
        self.workload = workload
        self.usable = device.usable_bytes
        costs = ContextCosts(
            weights_bytes=model.loaded_bytes,
            step=model.step,
            live_bytes=model.spec.budget_bytes,
            context_length=model.context_length,
        )
        self.budget, self.longest = kv_budget(costs, device, tokens)
        self.contexts = model.spec.contexts_bytes(self.budget)
        self.context_bytes = model.spec.live_bytes(tokens)
        self.token_bytes = sum(
            layer.token_bytes for layer in model.spec.layers if layer.kind is LayerKind.FULL
        )
        self.disk_bytes = workload.agents * model.spec.context_bytes(tokens)


def _notes(sizes: _Arithmetic, resident: int) -> Iterator[str]:
    workload, model = sizes.workload, sizes.model
    tokens = workload.context_tokens
    if tokens > model.context_length:
        yield (
            f"The model reads at most {model.context_length:,} tokens: contexts of {tokens:,}"
            " tokens are refused."
        )
    if not sizes.longest:
        weights, step = size_text(model.loaded_bytes), size_text(model.step.bytes_at(tokens))
        yield (
            f"The model does not fit: the weights ({weights}) and one step ({step}) need more"
            f" than the {size_text(sizes.usable)} that are usable. Take a smaller model or fewer"
            " bits per weight."
        )
    elif sizes.longest < min(tokens, model.context_length):
        yield (
            f"A context of {tokens:,} tokens does not fit: it needs"
            f" {size_text(sizes.context_bytes)} and {size_text(sizes.contexts)} are left. The"
            f" longest that fits alone is {sizes.longest:,} tokens."
        )
    elif sizes.longest >= tokens:
        yield from _notes_on_turns(sizes, resident)


def _notes_on_turns(sizes: _Arithmetic, resident: int) -> Iterator[str]:
    workload = sizes.workload
    if resident == workload.agents:
        yield f"All {resident} contexts stay in memory: a switch between them reads no disk."
    else:
        yield (
            f"{resident} of {workload.agents} contexts stay in memory: a switch to another one"
            " reads it from the disk."
        )
    limit = workload.disk_budget_bytes
    if limit is not None and sizes.disk_bytes > limit:
        yield (
            f"The disk budget of {size_text(limit)} does not hold all contexts, which take"
            f" {size_text(sizes.disk_bytes)}: raise cache.disk_budget_gb, or some are computed"
            " again."
        )
