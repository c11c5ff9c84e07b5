"""The plan of a model's memory, with numbers computed by hand."""

from __future__ import annotations

import pytest

from domain.kv.plan import (
    ContextCosts,
    DeviceMemory,
    MemoryPlan,
    ModelFootprint,
    StepMemory,
    Workload,
    kv_budget,
    metal_working_set,
    plan_memory,
    planned_mac,
    planned_share,
    size_text,
)
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec

GIB = 1 << 30
#: 2 heads x (3 + 2) elements x 2 bytes = 20 bytes a token.
FULL = LayerSpec(kind=LayerKind.FULL, kv_heads=2, key_dim=3, value_dim=2, element_bytes=2)
WINDOW = LayerSpec(
    kind=LayerKind.SLIDING, kv_heads=2, key_dim=3, value_dim=2, element_bytes=2, window=4
)
STATE = LayerSpec(kind=LayerKind.STATE, state_bytes=50)


def footprint(
    *layers: LayerSpec, weights: int = 600, step: StepMemory | None = None
) -> ModelFootprint:
    return ModelFootprint(
        weights_bytes=weights,
        spec=ModelCacheSpec(layers=layers or (FULL,), dtype="float16", block_tokens=4),
        step=step or StepMemory(fixed_bytes=0),
        context_length=1000,
    )


def of_size(device_bytes: int) -> DeviceMemory:
    return DeviceMemory(
        memory_bytes=2 * device_bytes,
        device_bytes=device_bytes,
        usable_bytes=planned_share(device_bytes),
        source="a test",
    )


def planned(
    model: ModelFootprint,
    device: int,
    *,
    agents: int = 3,
    tokens: int = 10,
    disk_budget: int | None = None,
) -> MemoryPlan:
    workload = Workload(
        agents=agents, context_tokens=tokens, disk_bytes_per_s=100, disk_budget_bytes=disk_budget
    )
    return plan_memory(model, workload, of_size(device))


@pytest.mark.parametrize(
    ("memory_gib", "working_set_gib"),
    [(16, 32 / 3), (24, 16), (32, 64 / 3), (36, 27), (64, 48), (128, 96)],
)
def test_working_set_is_near_the_values_that_macs_report(
    memory_gib: int, working_set_gib: float
) -> None:
    assert metal_working_set(memory_gib * GIB) == int(working_set_gib * GIB)


def test_mac_is_planned_with_nine_tenths_of_its_working_set() -> None:
    mac = planned_mac(24 * GIB)
    assert (mac.memory_bytes, mac.device_bytes) == (24 * GIB, 16 * GIB)
    assert mac.usable_bytes == 16 * GIB * 9 // 10
    assert "Metal" in mac.source
    assert isinstance(metal_working_set(64 * GIB), int)


def test_budget_is_nine_tenths_of_the_device_without_weights_and_step() -> None:
    plan = planned(footprint(step=StepMemory(fixed_bytes=30, token_bytes=2)), 2000)
    assert plan.step_bytes == 30 + 10 * 2
    assert plan.kv_budget_bytes == 1800 - 600 - 50


def test_budget_and_a_step_on_the_longest_context_never_exceed_the_device() -> None:
    costs = ContextCosts(
        weights_bytes=600,
        step=StepMemory(fixed_bytes=0, token_bytes=5),
        live_bytes=lambda tokens: 20 * tokens,
        context_length=1000,
    )
    # 1,200 of 1,800 beside the weights hold a context of 48 tokens and its step.
    assert kv_budget(costs, of_size(2000), tokens=4) == (2000 - 600 - 48 * 5, 48)
    assert kv_budget(costs, of_size(2000), tokens=48) == (1800 - 600 - 48 * 5, 48)


def test_contexts_that_fit_together_stay_in_memory() -> None:
    plan = planned(footprint(), 2000)  # 1200 for contexts of 200
    assert (plan.context_bytes, plan.resident_contexts, plan.fits) == (200, 3, True)
    assert (plan.restored_bytes, plan.restored_s) == (0, 0)
    assert plan.notes == ("All 3 contexts stay in memory: a switch between them reads no disk.",)


def test_other_contexts_are_read_from_the_disk() -> None:
    plan = planned(footprint(), 1200)  # 480 - 80 for contexts of 200
    assert (plan.resident_contexts, plan.fits) == (2, True)
    assert plan.disk_bytes == 3 * 200
    assert (plan.restored_bytes, plan.restored_s) == (200, 2.0)
    assert plan.notes == (
        "2 of 3 contexts stay in memory: a switch to another one reads it from the disk.",
    )


@pytest.mark.parametrize(("device", "resident"), [(1880, 1), (1900, 2)])
def test_copies_in_flight_and_a_checkpoint_take_memory_from_contexts(
    device: int, resident: int
) -> None:
    """Two contexts of 10 tokens need 2 x 450, a block of 80, and a checkpoint of 130."""
    plan = planned(footprint(FULL, WINDOW, STATE), device)
    assert plan.context_bytes == 450
    assert plan.resident_contexts == resident


def test_windows_and_states_are_the_fixed_part_and_in_checkpoints_on_disk() -> None:
    plan = planned(footprint(FULL, WINDOW, STATE), 20_000, tokens=98)
    assert plan.kv_token_bytes == 20
    # The window's buffer holds 64 tokens more than the window, and has room for a block.
    assert plan.kv_fixed_bytes == (4 + 64 + 4) * 20 + 50
    assert plan.context_bytes == 98 * 20 + (4 + 64 + 4) * 20 + 50
    # Three checkpoints, each with a whole window and a state.
    assert plan.disk_bytes == 3 * (98 * 20 + 4 * (4 * 20 + 50))


def test_longest_context_leaves_room_for_its_own_step() -> None:
    plan = planned(footprint(step=StepMemory(fixed_bytes=0, token_bytes=5)), 1000, tokens=2)
    # 300, of which a block of four tokens is for copies on their way to the disk.
    assert plan.longest_context_tokens == (300 - 80) // 25


def test_longest_context_is_at_most_the_models_own() -> None:
    assert planned(footprint(), 1_000_000).longest_context_tokens == 1000


def test_a_context_that_does_not_fit_alone_is_named_with_the_longest_that_does() -> None:
    plan = planned(footprint(), 1000, tokens=20)  # 300 - 80 for a context of 400
    assert (plan.fits, plan.resident_contexts, plan.longest_context_tokens) == (False, 0, 11)
    (note,) = plan.notes
    assert note.startswith("A context of 20 tokens does not fit: it needs 0.4 kB")
    assert note.endswith("The longest that fits alone is 11 tokens.")


@pytest.mark.parametrize("weights", [900, 901, 5000])
def test_weights_that_leave_nothing_do_not_fit(weights: int) -> None:
    plan = planned(footprint(weights=weights), 1000)
    assert (plan.fits, plan.kv_budget_bytes, plan.longest_context_tokens) == (False, 0, 0)
    (note,) = plan.notes
    assert note.startswith("The model does not fit: the weights")


def test_contexts_beyond_the_models_own_do_not_fit() -> None:
    plan = planned(footprint(), 1_000_000, tokens=1001)
    assert not plan.fits
    assert plan.notes == (
        "The model reads at most 1,000 tokens: contexts of 1,001 tokens are refused.",
    )


def test_a_disk_budget_below_all_contexts_is_named() -> None:
    plan = planned(footprint(), 2000, disk_budget=599)
    assert "raise cache.disk_budget_gb" in plan.notes[-1]
    assert len(planned(footprint(), 2000, disk_budget=600).notes) == 1


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 kB"),
        (99_999, "100.0 kB"),
        (10**5, "0.1 MB"),
        (3_145_728, "3.1 MB"),
        (10**8, "0.1 GB"),
        (1_234_567_890_123, "1,234.6 GB"),
        (10**15, "1,000,000.0 GB"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


def test_plan_repeats_what_it_was_made_of() -> None:
    plan = planned(footprint(step=StepMemory(fixed_bytes=5, token_bytes=2)), 2000, tokens=12)
    assert (plan.device_bytes, plan.usable_bytes, plan.weights_bytes) == (2000, 1800, 600)
    assert plan.step_bytes == 5 + 2 * 12
    assert plan.kv_token_bytes == 20
    assert (plan.agents, plan.context_tokens) == (3, 12)


def test_a_context_as_long_as_the_models_own_is_no_fault() -> None:
    assert planned(footprint(), 10**6, tokens=1000).fits
    assert not any("refused" in note for note in planned(footprint(), 10**6, tokens=1000).notes)
