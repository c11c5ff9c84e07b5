"""Prefill pauses only where a layer must be copied at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.scheduling.prefill_pauses import pause_positions

BLOCK = 256
FULL = LayerSpec(kind=LayerKind.FULL, kv_heads=2, key_dim=8, value_dim=8, element_bytes=2)
WINDOW = LayerSpec(
    kind=LayerKind.SLIDING, kv_heads=2, key_dim=8, value_dim=8, element_bytes=2, window=512
)
STATE = LayerSpec(kind=LayerKind.STATE, state_bytes=64)


def spec_of(*layers: LayerSpec) -> ModelCacheSpec:
    return ModelCacheSpec(layers=layers, dtype="float16", block_tokens=BLOCK)


def test_full_attention_needs_no_pause() -> None:
    assert pause_positions(spec_of(FULL), 0, 5000, checkpoints=[700]) == []


def test_windows_pause_at_checkpoints() -> None:
    spec = spec_of(FULL, WINDOW)
    assert pause_positions(spec, 0, 5000, checkpoints=[700, 3000]) == [700, 3000]
    assert pause_positions(spec, 700, 3001, checkpoints=[700, 3000]) == []


def test_states_pause_at_checkpoints_and_at_the_end_of_each_block() -> None:
    spec = spec_of(FULL, STATE)
    assert pause_positions(spec, 300, 1025, checkpoints=[700]) == [512, 700, 768]


@given(st.integers(0, 3000), st.integers(1, 3000), st.lists(st.integers(0, 7000)))
def test_pauses_are_ascending_and_inside_the_part_to_compute(
    start: int, length: int, checkpoints: list[int]
) -> None:
    stop = start + length
    for spec in (spec_of(FULL), spec_of(WINDOW), spec_of(STATE, FULL)):
        pauses = pause_positions(spec, start, stop, checkpoints=checkpoints)
        assert pauses == sorted(set(pauses))
        assert all(start < pause < stop - 1 for pause in pauses)
