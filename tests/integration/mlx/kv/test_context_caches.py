"""Moves of a context: the logits after each are those of caches that never moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache

from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from tests.support.models.families import every_architecture
from tests.support.models.kv_sequences import difference, random_tokens
from tests.support.models.runner_probe import Bench
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    QWEN3_NEXT,
    Architecture,
)
from worker.engine.mlx.kv.codec import BlockArrays
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.row_target import untouched_arrays
from worker.engine.mlx.kv.window_cache import leaves, make_row_caches

BLOCK = 16
HELD = 5 * BLOCK + 3
PROMPT = random_tokens(HELD, 1)
NEXT = random_tokens(6, 2)

#: Without states, which cannot be trimmed.
trimmable = pytest.mark.parametrize("architecture", [LLAMA, GEMMA3, GPT_OSS], ids=lambda a: a.name)


@cache
def network(architecture: Architecture) -> Any:
    return architecture.make(mx.float32)


def empty(architecture: Architecture) -> ContextCaches:
    model = network(architecture)
    return ContextCaches(probe_spec(model, BLOCK), make_row_caches(model, BLOCK))


def read(architecture: Architecture, caches: ContextCaches, tokens: list[int]) -> mx.array:
    """Compute tokens one by one; return the logits after each, [tokens, vocabulary]."""
    logits = []
    for token in tokens:
        logits.append(network(architecture)(mx.array([[token]]), cache=caches.caches)[0, -1])
        mx.eval(logits[-1], [leaf.state for leaf in caches.leaves])
    return mx.stack(logits)


def prefilled(architecture: Architecture, tokens: list[int]) -> ContextCaches:
    caches = empty(architecture)
    network(architecture)(mx.array([tokens]), cache=caches.caches)
    mx.eval([leaf.state for leaf in caches.leaves])
    return caches


def done(steps: Iterable[Any]) -> int:
    """Run a move to its end; return the number of its steps."""
    return sum(1 for _ in steps)


def expected(architecture: Architecture, tokens: int = HELD) -> mx.array:
    """Return the logits of caches that never moved."""
    return read(architecture, prefilled(architecture, PROMPT[:tokens]), NEXT)


@every_architecture
def test_a_row_with_room_continues_in_it(architecture: Architecture) -> None:
    caches = prefilled(architecture, PROMPT)
    layers = sum(layer.kind is LayerKind.FULL for layer in caches._spec.layers)
    assert done(caches.reserve(8 * BLOCK)) == layers
    assert done(caches.reserve(8 * BLOCK)) == 0
    assert all(leaf.keys.shape[2] == 8 * BLOCK for leaf in caches.leaves if type(leaf) is KVCache)
    assert difference(read(architecture, caches, NEXT), expected(architecture)) == 0
    assert all(leaf.keys.shape[2] == 8 * BLOCK for leaf in caches.leaves if type(leaf) is KVCache)


@every_architecture
def test_a_copy_out_of_two_contexts_is_the_context(architecture: Architecture) -> None:
    """The second one has lost its beginning."""
    row, first, second = empty(architecture), *(prefilled(architecture, PROMPT) for _ in range(2))
    ends = second.ends_at(HELD, HELD)
    second.keep(2 * BLOCK, HELD, 4 * BLOCK)
    done(row.reserve(7 * BLOCK))
    done(row.copy_from(first, 0, 3 * BLOCK))
    done(row.copy_from(second, 3 * BLOCK, HELD))
    done(row.set_ends(ends, HELD))
    row.set_tokens(HELD)
    assert difference(read(architecture, row, NEXT), expected(architecture)) == 0
    # The sources are unchanged.
    assert difference(read(architecture, first, NEXT), expected(architecture)) == 0


@every_architecture
def test_blocks_that_are_read_and_written_are_the_context(architecture: Architecture) -> None:
    source, row = prefilled(architecture, PROMPT), empty(architecture)
    done(row.reserve(7 * BLOCK))
    for start in range(0, HELD, BLOCK):
        stop = min(start + BLOCK, HELD)
        row.write(source.read(start, stop), start, stop - start)
    done(row.set_ends(source.ends_at(HELD, HELD), HELD))
    row.set_tokens(HELD)
    assert difference(read(architecture, row, NEXT), expected(architecture)) == 0
    assert difference(read(architecture, source, NEXT), expected(architecture)) == 0


@trimmable
@pytest.mark.parametrize("back", [0, 1, BLOCK, 3 * BLOCK])
def test_a_trimmed_context_is_the_shorter_one(architecture: Architecture, back: int) -> None:
    caches, tokens = prefilled(architecture, PROMPT), HELD - back
    assert caches.can_end_at(tokens, HELD)
    ends = caches.ends_at(tokens, HELD)
    caches.trim_end(tokens, HELD)
    other = prefilled(architecture, PROMPT)
    other.drop_ends()
    other.set_tokens(tokens)
    done(other.set_ends(ends, tokens))
    wanted = expected(architecture, tokens)
    # A shorter prompt is computed in another shape: its keys differ by rounding.
    assert difference(read(architecture, caches, NEXT), wanted) < 1e-3
    assert difference(read(architecture, other, NEXT), read_again(architecture, tokens)) == 0


def read_again(architecture: Architecture, tokens: int) -> mx.array:
    """Return the logits after a trim alone."""
    caches = prefilled(architecture, PROMPT)
    caches.trim_end(tokens, HELD)
    return read(architecture, caches, NEXT)


@trimmable
def test_steps_that_failed_are_taken_back(architecture: Architecture) -> None:
    caches = prefilled(architecture, PROMPT)
    read(architecture, caches, random_tokens(5, 3))
    caches.rewind(HELD)
    assert difference(read(architecture, caches, NEXT), expected(architecture)) == 0


def test_a_state_is_dropped_where_it_cannot_be_taken_back() -> None:
    caches = prefilled(QWEN3_NEXT, PROMPT)
    read(QWEN3_NEXT, caches, NEXT)
    caches.rewind(HELD)
    assert not caches.can_end_at(HELD, HELD)
    with pytest.raises(AssertionError):
        caches.ends_at(HELD, HELD)


def test_a_window_is_dropped_where_it_has_moved_on() -> None:
    caches = prefilled(GEMMA3, PROMPT * 3)
    assert not caches.can_end_at(HELD, 3 * HELD)
    caches.rewind(HELD)
    assert not caches.can_end_at(HELD, HELD)


def test_a_context_ends_as_far_back_as_a_whole_window_is_stored() -> None:
    """One token further the window of the next token is whole, and a checkpoint would not be."""
    held = 3 * HELD
    caches = prefilled(GEMMA3, PROMPT * 3)
    windows = [
        (leaf.length, layer.window)
        for leaf, layer in zip(
            caches.leaves, probe_spec(network(GEMMA3), BLOCK).layers, strict=True
        )
        if layer.kind is LayerKind.SLIDING
    ]
    back = min(length - window for length, window in windows)
    assert 0 < back < held - max(window for _, window in windows), "the windows have dropped tokens"
    assert not caches.can_end_at(held - back - 1, held)
    assert caches.can_end_at(held - back, held)
    other = prefilled(GEMMA3, PROMPT * 3)
    done(other.copy_ends(caches, held - back, held))
    assert other.can_end_at(held - back, held - back)


@every_architecture
def test_a_shorter_segment_has_its_tokens_and_no_ends(architecture: Architecture) -> None:
    caches, whole = prefilled(architecture, PROMPT), prefilled(architecture, PROMPT)
    caches.keep(BLOCK, 3 * BLOCK, 2 * BLOCK)
    one, other = caches.read(BLOCK, 3 * BLOCK), whole.read(BLOCK, 3 * BLOCK)
    assert all(difference(one.tensors[name], other.tensors[name]) == 0 for name in other.tensors)
    spec = caches._spec
    if spec.full_bytes(1):
        assert caches.nbytes == spec.full_bytes(2 * BLOCK)
        assert not spec.has_ends or not caches.can_end_at(3 * BLOCK, 3 * BLOCK)


@every_architecture
def test_a_checkpoint_does_not_change_with_its_context(architecture: Architecture) -> None:
    caches = prefilled(architecture, PROMPT)
    ends = caches.ends_at(HELD, HELD)
    before = {name: mx.array(tensor) for name, tensor in ends.items()}
    read(architecture, caches, NEXT)
    assert all(difference(ends[name], before[name]) == 0 for name in ends)
    assert sum(tensor.nbytes for tensor in ends.values()) == caches._spec.ends_bytes(HELD)
    # Two rows start from one checkpoint.
    rows = [prefilled(architecture, PROMPT) for _ in range(2)]
    for row in rows:
        row.drop_ends()
        done(row.set_ends(ends, HELD))
        assert difference(read(architecture, row, NEXT), expected(architecture)) == 0
    assert all(difference(ends[name], before[name]) == 0 for name in ends)


def test_states_of_a_batch_become_the_row_s_own() -> None:
    caches = prefilled(QWEN3_NEXT, PROMPT)
    for leaf, layer in zip(caches.leaves, caches._spec.layers, strict=True):
        if layer.kind is LayerKind.STATE:
            batch = [mx.concatenate([one, one + 1]) for one in leaf.cache]
            leaf.cache = [one[:1] for one in batch]
    caches.own_ends()
    assert difference(read(QWEN3_NEXT, caches, NEXT), expected(QWEN3_NEXT)) == 0


# --- memory --------------------------------------------------------------------------------------

LAYERS = 6
LONG = 40 * BLOCK
#: One layer of the wide network with its room, in bytes.
LAYER_BYTES = 2 * 2 * LONG * 64 * 4


@cache
def wide() -> ModelCacheSpec:
    """Return the layout of caches that are large beside what a step takes."""
    layer = LayerSpec(kind=LayerKind.FULL, kv_heads=2, key_dim=64, value_dim=64, element_bytes=4)
    return ModelCacheSpec(layers=(layer,) * LAYERS, dtype="float32", block_tokens=BLOCK)


def filled(tokens: int = LONG - BLOCK, slots: int = LONG) -> ContextCaches:
    """Return wide caches with random tokens."""
    spec = wide()
    caches = ContextCaches(spec, [KVCache() for _ in range(LAYERS)])
    done(caches.reserve(slots))
    for leaf in caches.leaves:
        leaf.keys[:, :, :tokens] = mx.random.normal((1, 2, tokens, 64))
        leaf.values[:, :, :tokens] = mx.random.normal((1, 2, tokens, 64))
        mx.eval(leaf.keys, leaf.values)
    caches.set_tokens(tokens)
    return caches


def write_one(caches: ContextCaches) -> None:
    """Append one token to every layer."""
    one = mx.ones((1, 2, 1, 64))
    for leaf in caches.leaves:
        leaf.update_and_fetch(one, one)
        mx.eval(leaf.keys, leaf.values)


def added_peak(move: Callable[[], Any]) -> int:
    """Return by how many bytes the peak of a move exceeds the memory before it."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    move()
    return mx.get_peak_memory() - before


def test_a_write_of_one_token_copies_nothing() -> None:
    caches = filled()
    assert added_peak(lambda: write_one(caches)) < LAYER_BYTES // 8


@pytest.mark.parametrize(
    "move",
    [
        lambda caches: done(caches.reserve(LONG + 2 * BLOCK)),
        lambda caches: caches.keep(BLOCK, LONG - BLOCK, LONG),
        lambda caches: caches.keep(0, LONG - 4 * BLOCK, LONG),
    ],
    ids=["reserve", "trim_start", "trim_end"],
)
def test_a_move_that_copies_a_context_needs_one_layer_more(
    move: Callable[[ContextCaches], Any],
) -> None:
    caches = filled()
    grown_bytes = LAYERS * LAYER_BYTES * 2 * BLOCK // LONG
    assert added_peak(lambda: move(caches)) <= LAYER_BYTES * 5 // 4 + grown_bytes
    assert added_peak(lambda: write_one(caches)) < LAYER_BYTES // 8


@pytest.mark.parametrize(
    "move",
    [
        lambda caches: caches.trim_end(LONG - 3 * BLOCK, LONG - BLOCK),
        lambda caches: caches.rewind(LONG - 3 * BLOCK),
        lambda caches: caches.set_tokens(LONG - 3 * BLOCK),
        lambda caches: caches.read(BLOCK, 2 * BLOCK),
        lambda caches: caches.read(0, BLOCK),
        lambda caches: caches.write(caches.read(0, BLOCK), BLOCK, BLOCK),
        lambda caches: caches.own_ends(),
    ],
    ids=["trim_end", "rewind", "set_tokens", "read", "read_first", "write", "own_ends"],
)
def test_a_move_of_a_block_copies_no_layer_and_leaves_no_view(
    move: Callable[[ContextCaches], Any],
) -> None:
    caches, kept = filled(), []
    block_bytes = wide().full_bytes(BLOCK)
    assert added_peak(lambda: kept.append(move(caches))) <= 2 * block_bytes
    assert added_peak(lambda: write_one(caches)) < LAYER_BYTES // 8


def test_a_copy_into_a_row_with_room_takes_no_memory_and_leaves_no_view() -> None:
    row, source = filled(), filled()

    def copy() -> None:
        done(row.copy_from(source, BLOCK, 5 * BLOCK))

    assert added_peak(copy) < LAYER_BYTES // 2
    assert added_peak(lambda: write_one(row)) < LAYER_BYTES // 8
    assert added_peak(lambda: write_one(source)) < LAYER_BYTES // 8


def test_a_written_block_may_be_longer_than_what_is_taken_of_it() -> None:
    caches = filled()
    block = filled().read(0, BLOCK)
    before = caches.read(BLOCK + 3, 3 * BLOCK)
    caches.write(BlockArrays(BLOCK, MappingProxyType(dict(block.tensors))), BLOCK, 3)
    after = caches.read(BLOCK + 3, 3 * BLOCK)
    assert all(difference(after.tensors[name], before.tensors[name]) == 0 for name in after.tensors)


def test_nested_caches_are_the_layers_in_order() -> None:
    assert len(leaves(empty(QWEN3_NEXT).caches)) == len(QWEN3_NEXT.layers)


def test_a_state_that_is_parked_keeps_no_batch_in_memory() -> None:
    """Also one that is so small that MLX would rather return a view of the batch."""
    rows, size = 8, 256
    caches = empty(FALCON_H1)
    states = [leaf for leaf in caches.leaves if type(leaf) is ArraysCache]
    batch = mx.zeros((rows, size))
    mx.eval(batch)
    for at, leaf in enumerate(states):
        leaf.cache = [batch[at : at + 1] for _ in leaf.cache]
    caches.own_ends()
    before = mx.get_active_memory()
    del batch
    assert mx.get_active_memory() <= before - rows * size * 4


def test_a_row_that_decodes_holds_its_states_once() -> None:
    bench = Bench(FALCON_H1)
    runs = [bench.join(random_tokens(40, seed), 20) for seed in (1, 2)]
    while not all(run.tokens for run in runs):
        bench.step()
    for row in bench.runner.sequences._rows.rows:
        assert not any(leaf.nbytes for leaf in leaves(row.caches) if type(leaf) is ArraysCache)
    bench.close()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_buffers_that_nothing_has_written_are_as_good_as_zeros(dtype: mx.Dtype) -> None:
    before = mx.get_active_memory()
    arrays = untouched_arrays({"a": ((1, 2, 40, 8), dtype), "b": ((3,), dtype)})
    assert {name: (one.shape, one.dtype) for name, one in arrays.items()} == {
        "a": ((1, 2, 40, 8), dtype),
        "b": ((3,), dtype),
    }
    assert mx.get_active_memory() - before >= 643 * dtype.size
    arrays["a"][:, :, 3:5] = mx.ones((1, 2, 2, 8), dtype)
    assert mx.all(arrays["a"][:, :, 3:5] == 1)
    assert added_peak(lambda: write_into(arrays["a"])) < 40 * 2 * 8 * dtype.size


def write_into(buffer: mx.array) -> None:
    buffer[:, :, 7:8] = mx.ones((1, 2, 1, 8), buffer.dtype)
    mx.eval(buffer)
