"""Derive a model's cache layout by running two short forward passes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from domain.kv.spec import BLOCK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx.kv.leaves import SLIDING_CLASSES, STATE_CLASSES, UnsupportedCache, leaves
from worker.engine.mlx.kv.window_cache import make_row_caches

#: Tokens of the two forward passes that fill the caches; a state must keep its shape.
_PROBE = ([0, 1], [0, 1, 2])


def probe_spec(model: Any, block_tokens: int = BLOCK_TOKENS) -> ModelCacheSpec:  # noqa: ANN401 - mlx-lm ships no types
    """Return the layers, dtypes and sizes of the model's caches, in the order of the layers.

    Args:
        model: An mlx-lm model.

    Raises:
        UnsupportedCache: A cache has a class or a layout that cannot be restored.
    """
    caches = make_row_caches(model, block_tokens)
    found = leaves(caches)
    for leaf in found:
        _refuse_unknown(leaf)
    shapes = []
    for tokens in _PROBE:
        model(mx.array([tokens]), cache=caches)
        shapes.append([_state_shapes(leaf) for leaf in found])
    if shapes[0] != shapes[1]:
        raise UnsupportedCache("a layer's state grows with the context")
    layers = tuple(_layer(leaf, index) for index, leaf in enumerate(found))
    return ModelCacheSpec(layers=layers, dtype=_dtype(found), block_tokens=block_tokens)


def _refuse_unknown(leaf: Any) -> None:  # noqa: ANN401 - as above
    name = type(leaf).__name__
    if getattr(leaf, "keep", 0):
        raise UnsupportedCache(f"a {name} that always keeps its first {leaf.keep} tokens")
    if type(leaf) not in (KVCache, *SLIDING_CLASSES, *STATE_CLASSES):
        raise UnsupportedCache(f"the cache class {name} is not known")


def _state_shapes(leaf: Any) -> list[Any]:  # noqa: ANN401 - as above
    if type(leaf) not in STATE_CLASSES:
        return []
    return [None if array is None else (array.shape, array.dtype) for array in leaf.cache]


def _layer(leaf: Any, index: int) -> LayerSpec:  # noqa: ANN401 - as above
    arrays = _arrays(leaf)
    if any(array is None for array in arrays):
        raise UnsupportedCache(f"cache {index}, a {type(leaf).__name__}, stays empty")
    if type(leaf) in STATE_CLASSES:
        return LayerSpec(kind=LayerKind.STATE, state_bytes=sum(array.nbytes for array in arrays))
    keys, values = arrays
    if keys.dtype != values.dtype:
        raise UnsupportedCache(f"cache {index} has keys and values of different types")
    sliding = type(leaf) in SLIDING_CLASSES
    return LayerSpec(
        kind=LayerKind.SLIDING if sliding else LayerKind.FULL,
        kv_heads=keys.shape[1],
        key_dim=keys.shape[3],
        value_dim=values.shape[3],
        element_bytes=keys.dtype.size,
        window=leaf.max_size if sliding else 0,
    )


def _arrays(leaf: Any) -> list[Any]:  # noqa: ANN401 - as above
    return list(leaf.cache) if type(leaf) in STATE_CLASSES else [leaf.keys, leaf.values]


def _dtype(found: list[Any]) -> str:
    """Return the type of keys and values, or of the states where there are no keys."""
    by_attention = sorted(found, key=lambda leaf: type(leaf) in STATE_CLASSES)
    return str(_arrays(by_attention[0])[0].dtype).removeprefix("mlx.core.")
