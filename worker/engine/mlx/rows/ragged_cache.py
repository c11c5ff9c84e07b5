"""One layer's cache over rows of unequal length, without padding.

mlx-lm decodes a batch from one buffer that is padded to its longest row. Here each row keeps the
``KVCache`` or ``WindowKVCache`` it was prefilled in. A ``RaggedCache`` stands in for the layer's
cache while the network runs: linear layers see all rows as one batch, and
``ragged_attention.ragged_attention`` computes attention row by row on the rows' own buffers. The
memory of a batch is the sum of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList

from worker.engine.mlx.kv.leaves import STATE_CLASSES, leaves


@dataclass(frozen=True, slots=True)
class RaggedTensor:
    """Keys or values of several rows.

    Attributes:
        rows: One array for each row, of the shape [1, kv_heads, tokens of the row, head_dim].
        lengths: New tokens of each row in this forward pass.
    """

    rows: tuple[mx.array, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RaggedMask:
    """Attention masks of several rows: for each row an array, ``"causal"`` or ``None``."""

    rows: tuple[mx.array | str | None, ...]


class RaggedCache:
    """The caches of one attention layer for one forward pass over several rows.

    Args:
        rows: The layer's cache of each row: ``KVCache`` or ``WindowKVCache``.
        offset: Tokens in each row before the pass, of the shape [rows]; positions start there.
        lengths: New tokens of each row; rows shorter than the pass are padded on the right.
    """

    def __init__(self, rows: Sequence[Any], offset: mx.array, lengths: Sequence[int]) -> None:
        self._rows = rows
        self._lengths = tuple(lengths)
        self.offset = offset

    def make_mask(
        self,
        N: int,  # noqa: N803 - the name that mlx-lm's models use
        return_array: bool = False,  # noqa: FBT001, FBT002 - as mlx-lm's caches
        window_size: int | None = None,
    ) -> RaggedMask | None:
        """Return the mask of each row, or ``None`` where no row needs one."""
        del N
        masks = tuple(
            row.make_mask(length, return_array=return_array, window_size=window_size)
            for row, length in zip(self._rows, self._lengths, strict=True)
        )
        return None if all(mask is None for mask in masks) else RaggedMask(masks)

    def update_and_fetch(
        self, keys: mx.array, values: mx.array
    ) -> tuple[RaggedTensor, RaggedTensor]:
        """Append the new tokens of each row to its cache; return all of its keys and values.

        Args:
            keys: Of the new tokens, of the shape [rows, kv_heads, longest length, head_dim].
        """
        fetched = [
            row.update_and_fetch(key, value)
            for row, key, value in zip(
                self._rows,
                rows_of(keys, self._lengths),
                rows_of(values, self._lengths),
                strict=True,
            )
        ]
        return (
            RaggedTensor(tuple(key for key, _ in fetched), self._lengths),
            RaggedTensor(tuple(value for _, value in fetched), self._lengths),
        )


def rows_of(batch: mx.array, lengths: Sequence[int]) -> list[mx.array]:
    """Return each row of a batch as a view, without the padding behind its tokens.

    One split is cheaper than a slice for each row, in every layer of every step.

    Args:
        batch: [rows, heads, longest length, head_dim].
        lengths: Tokens of each row.

    Returns:
        For each row an array of the shape [1, heads, length, head_dim].
    """
    longest = batch.shape[2]
    return [
        row if length == longest else row[:, :, :length]
        for row, length in zip(mx.split(batch, len(lengths)), lengths, strict=True)
    ]


def ragged_caches(
    rows: Sequence[Sequence[Any]],
    lengths: Sequence[int],
    states: Callable[[int], Any],
) -> list[Any]:
    """Return the caches for one forward pass over several rows.

    Args:
        rows: The caches of each row, one for each layer.
        lengths: New tokens of each row.
        states: From the index of a recurrent layer to its state of all rows together.
    """
    flat = [leaves(caches) for caches in rows]
    offset = mx.array([_offset(found) for found in flat])
    merged = [
        states(index)
        if type(flat[0][index]) in STATE_CLASSES
        else RaggedCache([found[index] for found in flat], offset, lengths)
        for index in range(len(flat[0]))
    ]
    return nest(rows[0], iter(merged))


def nest(template: Sequence[Any], flat: Iterator[Any]) -> list[Any]:
    """Return flat caches with the nesting of ``template``."""
    return [
        CacheList(*nest(cache.caches, flat)) if type(cache) is CacheList else next(flat)
        for cache in template
    ]


def _offset(found: Sequence[Any]) -> int:
    """Return the tokens in a row; 0 where only recurrent layers, which have no positions."""
    return next((leaf.offset for leaf in found if type(leaf) not in STATE_CLASSES), 0)
