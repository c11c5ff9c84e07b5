"""Build the caches of a sequence from stored blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList

from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx.kv.arrays import TOKEN_AXIS, BlockArrays, key_name, state_name, value_name
from worker.engine.mlx.kv.leaves import leaves


def gather(
    spec: ModelCacheSpec,
    blocks: Sequence[BlockArrays],
    tail: BlockArrays | None,
    tail_tokens: int,
    make_cache: Callable[[], list[Any]],
) -> list[Any]:
    """Return caches that hold the tokens of ``blocks`` and the first ``tail_tokens`` of ``tail``.

    The blocks are copied: they may be evicted at once, and writes into the caches never reach
    them.

    Args:
        spec: Layers of the model's caches.
        blocks: All whole blocks from the start of the context, in order.
        tail: The block after them, or ``None``.
        tail_tokens: Tokens of the tail to use; all of them unless ``spec.may_cut(tail.tokens)``.
        make_cache: Returns empty caches of the model.

    Returns:
        One cache for each layer, nested as ``make_cache()`` returns them. Keys and values have
        the shape [1, kv_heads, tokens + room, head_dim].
    """
    assert all(block.tokens == spec.block_tokens for block in blocks), "only the tail is shorter"
    assert (tail is None) is (tail_tokens == 0), "a tail is some tokens"
    runs = [(block, block.tokens) for block in blocks]
    if tail is not None:
        usable = spec.usable_tokens(stored_tokens=tail.tokens, matching_tokens=tail_tokens)
        assert usable == tail_tokens, "this tail cannot be cut there"
        runs.append((tail, tail_tokens))
    assert runs, "nothing to gather"
    empty = make_cache()
    filled = [
        _fill(spec, runs, layer, index, leaf)
        for index, (leaf, layer) in enumerate(zip(leaves(empty), spec.layers, strict=True))
    ]
    mx.eval([leaf.state for leaf in filled])
    return _nest(empty, iter(filled))


def _fill(
    spec: ModelCacheSpec,
    runs: Sequence[tuple[BlockArrays, int]],
    layer: LayerSpec,
    index: int,
    leaf: Any,  # noqa: ANN401 - mlx-lm ships no types
) -> Any:  # noqa: ANN401 - as above
    """Return the cache of one layer."""
    if layer.kind is LayerKind.STATE:
        names = [state_name(index, part) for part in range(len(leaf.cache))]
        # A copy, because item assignment changes the array for every holder of the same handle.
        leaf.cache = [mx.contiguous(runs[-1][0].tensors[name]) for name in names]
        return leaf
    tokens = sum(count for _, count in runs)
    needed = runs[-spec.trailing_blocks(layer, tokens) :]
    full = layer.kind is LayerKind.FULL
    kept = layer.kept_tokens(tokens)
    room = leaf.step - tokens % leaf.step if full else leaf.slots_for(kept + 1) - kept
    keys = _join(layer, needed, key_name(index), tokens, room)
    values = _join(layer, needed, value_name(index), tokens, room)
    if full:
        leaf.state = (keys, values, tokens)
        return leaf
    leaf.state = (keys, values, tokens, kept)
    return leaf


def _nest(caches: Sequence[Any], filled: Iterator[Any]) -> list[Any]:
    """Return the filled caches with the nesting of the empty ones."""
    return [
        CacheList(*_nest(cache.caches, filled)) if type(cache) is CacheList else next(filled)
        for cache in caches
    ]


def _join(
    layer: LayerSpec, runs: Sequence[tuple[BlockArrays, int]], name: str, tokens: int, room: int
) -> mx.array:
    """Concatenate one tensor of ``runs`` to [1, kv_heads, kept_tokens + room, head_dim].

    Args:
        layer: The layer; a sliding window drops tokens from the front.
        runs: Blocks, each with the number of its first tokens to use.
        name: Name of the tensor.
        tokens: Tokens of all runs, counted from the start of the context.
        room: Zero-filled tokens to append, so that the next ones need no reallocation.
    """
    pieces = []
    for block, count in runs:
        piece = block.tensors[name]
        # Only blocks that keep all their tokens may be cut (spec.may_cut).
        pieces.append(piece if count == block.tokens else piece[:, :, :count])
    surplus = sum(piece.shape[TOKEN_AXIS] for piece in pieces) - layer.kept_tokens(tokens)
    if surplus > 0:
        pieces[0] = pieces[0][:, :, surplus:]
    if room:
        _, heads, _, dim = pieces[0].shape
        pieces.append(mx.zeros((1, heads, room, dim), pieces[0].dtype))
    return mx.concatenate(pieces, axis=TOKEN_AXIS)
