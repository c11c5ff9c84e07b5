"""The cache of a full-attention layer in 8 bits, and attention over it.

Keys and values are quantised once, when they are appended. Rows, parked contexts and files have the
same arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from domain.kv.spec import BLOCK_TOKENS, PACKED_BITS
from worker.engine.mlx.cpu import is_on_gpu
from worker.engine.mlx.kv.cpu_attention import attention, softmax, with_mask

_TOKEN_AXIS = 2
#: New tokens of a row up to which scores are computed from the 8 bits themselves. A longer piece of
#: a prompt attends to a copy of the layer in full precision, with a kernel that keeps no scores.
DIRECT_TOKENS_MAX = 16
_MATRIX_AXES = 2
#: Tokens of a row from which a CPU makes floats of the elements and multiplies with its BLAS; on
#: fewer of them the further operations take longer than that saves.
BLAS_TOKENS_MIN = 1024

#: Packed values, scales and biases, as ``mx.quantize`` returns them.
Packed: TypeAlias = tuple[mx.array, mx.array, mx.array]


@dataclass(frozen=True, slots=True)
class PackedKV:
    """Keys or values of one row, [1, kv_heads, tokens, …].

    Attributes:
        group: Elements that share a scale and a bias.
    """

    parts: Packed
    group: int

    @property
    def dtype(self) -> mx.Dtype:
        """Return the type of ``exact``."""
        return self.parts[1].dtype

    def astype(self, dtype: mx.Dtype) -> PackedKV:
        """Return the same elements, whose ``exact`` has another type."""
        words, scales, biases = self.parts
        return PackedKV((words, scales.astype(dtype), biases.astype(dtype)), self.group)

    def exact(self) -> mx.array:
        """Return a copy in full precision, not evaluated."""
        return mx.dequantize(*self.parts, group_size=self.group, bits=PACKED_BITS)

    def scores(self, queries: mx.array) -> mx.array:
        """Return the products of keys and queries, [1, kv_heads, queries, tokens]."""
        if not self._by_blas(queries):
            group = self.group
            return mx.quantized_matmul(queries, *self.parts, group_size=group, bits=PACKED_BITS)
        elements, scales, biases = self._groups()
        rows, heads, count, dim = queries.shape
        split = queries.reshape(rows, heads, count, dim // self.group, self.group)
        split = split.swapaxes(2, 3)
        products = (split @ elements.swapaxes(3, 4)) * scales.swapaxes(3, 4)
        products = products + split.sum(axis=-1, keepdims=True) * biases.swapaxes(3, 4)
        return products.sum(axis=2)

    def weighted(self, weights: mx.array) -> mx.array:
        """Return the sums of values, weighted by [1, kv_heads, queries, tokens]."""
        if not self._by_blas(weights):
            return mx.quantized_matmul(
                weights, *self.parts, transpose=False, group_size=self.group, bits=PACKED_BITS
            )
        elements, scales, biases = self._groups()
        split = weights[:, :, None]
        sums = (split * scales.swapaxes(3, 4)) @ elements + split @ biases
        rows, heads, groups, count, size = sums.shape
        return sums.swapaxes(2, 3).reshape(rows, heads, count, groups * size)

    def _by_blas(self, factor: mx.array) -> bool:
        """Return whether the product of floats is faster than MLX's own of packed elements."""
        is_long = self.parts[0].shape[_TOKEN_AXIS] >= BLAS_TOKENS_MIN
        return is_long and factor.dtype == mx.float32 and not is_on_gpu()

    def _groups(self) -> Packed:
        """Return elements as floats, scales and biases: [1, kv_heads, groups, tokens, …]."""
        words, scales, biases = self.parts
        rows, heads, tokens, groups = scales.shape
        elements = words.view(mx.uint8).reshape(rows, heads, tokens, groups, self.group)
        floats = elements.swapaxes(2, 3).astype(mx.float32)
        columns = (one.swapaxes(2, 3)[..., None] for one in (scales, biases))
        return (floats, *columns)  # type: ignore[return-value]  # three


class PackedKVCache:
    """Keys and values of one sequence, in one layer.

    Both are one array with twice the heads: values follow keys.

    Args:
        group: Elements of a head that share a scale and a bias.
        step: Tokens by which the buffers grow.

    Attributes:
        words: Four values in each element, [1, 2 * kv_heads, slots, head_dim / 4].
        scales: [1, 2 * kv_heads, slots, head_dim / group], as ``biases``.
    """

    def __init__(self, group: int, step: int = BLOCK_TOKENS) -> None:
        self.group = group
        self.step = step
        self.words: mx.array | None = None
        self.scales: mx.array | None = None
        self.biases: mx.array | None = None
        self.offset = 0

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, mx.array | None, int]:
        """The buffers, and the tokens in them."""
        return self.words, self.scales, self.biases, self.offset

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(one.nbytes for one in self.state[:3] if one is not None)

    def quantised(self, keys: mx.array, values: mx.array) -> Packed:
        """Return keys and values as ``append`` takes them; any number of rows at once."""
        joined = mx.concatenate([keys, values], axis=1)
        words, scales, biases = mx.quantize(joined, group_size=self.group, bits=PACKED_BITS)
        return words, scales, biases

    def append(self, new: Packed) -> None:
        """Append new tokens."""
        stop = self.offset + new[0].shape[_TOKEN_AXIS]
        held = self.state[:3]
        if held[0] is None or stop > held[0].shape[_TOKEN_AXIS]:
            slots = -(-stop // self.step) * self.step
            self.words, self.scales, self.biases = (
                _grown(None if one is None else one[:, :, : self.offset], part, slots)
                for one, part in zip(held, new, strict=True)
            )
        for buffer, part in zip(self.state[:3], new, strict=True):
            assert buffer is not None, "there is room"
            buffer[:, :, self.offset : stop] = part
        self.offset = stop

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Append new tokens, [1, kv_heads, tokens, head_dim]; return all keys and values."""
        self.append(self.quantised(keys, values))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        """Return all keys and values as views."""
        assert self.words is not None, "the cache is empty"
        assert self.scales is not None, "the cache is empty"
        assert self.biases is not None, "the cache is empty"
        heads, stop = self.words.shape[1] // 2, self.offset
        buffers = self.words, self.scales, self.biases
        keys, values = (
            tuple(one[:, first : first + heads, :stop] for one in buffers) for first in (0, heads)
        )
        return PackedKV(keys, self.group), PackedKV(values, self.group)  # type: ignore[arg-type]  # three each

    def make_mask(
        self,
        N: int,  # noqa: N803 - the name that mlx-lm's models use
        return_array: bool = False,  # noqa: FBT001, FBT002 - as mlx-lm's caches
        window_size: int | None = None,
    ) -> Any:  # noqa: ANN401 - mlx-lm ships no types
        """Return the mask for ``N`` new tokens, as mlx-lm's caches do."""
        return create_attention_mask(
            N, self.offset, return_array=return_array, window_size=window_size
        )

    def trim(self, n: int) -> int:
        """Take back the last ``n`` tokens; return how many there were."""
        n = min(self.offset, n)
        self.offset -= n
        return n

    def size(self) -> int:
        """Return the tokens that are stored."""
        return self.offset

    def empty(self) -> bool:
        """Return whether the cache has no buffers yet."""
        return self.words is None


def _grown(held: mx.array | None, new: mx.array, slots: int) -> mx.array:
    """Return a copy of a buffer with ``slots`` slots."""
    rows, heads, _, dim = new.shape
    tokens = 0 if held is None else held.shape[_TOKEN_AXIS]
    room = mx.zeros((rows, heads, slots - tokens, dim), new.dtype)
    return room if held is None else mx.concatenate([held, room], axis=_TOKEN_AXIS)


def attention_of_row(
    queries: mx.array,
    keys: mx.array | PackedKV,
    values: mx.array | PackedKV,
    scale: float,
    mask: Any,  # noqa: ANN401 - an array, "causal" or None
    sinks: mx.array | None,
) -> mx.array:
    """Return the attention of one row, [1, heads, tokens, head_dim]."""
    if isinstance(keys, PackedKV):
        assert isinstance(values, PackedKV), "keys and values have one form"
        is_plain = mask is None or isinstance(mask, str) or mask.ndim == _MATRIX_AXES
        if is_plain and queries.shape[_TOKEN_AXIS] <= DIRECT_TOKENS_MAX:
            return _packed_attention(queries, keys, values, scale, mask, sinks)
        keys, values = keys.exact(), values.exact()
    assert isinstance(values, mx.array), "keys and values have one form"
    return attention(queries, keys, values, scale, mask, sinks)


def _packed_attention(
    queries: mx.array,
    keys: PackedKV,
    values: PackedKV,
    scale: float,
    mask: Any,  # noqa: ANN401 - an array of two axes, "causal" or None
    sinks: mx.array | None,
) -> mx.array:
    rows, heads, new, dim = queries.shape
    kv_heads, tokens = keys.parts[0].shape[1:3]
    repeats = heads // kv_heads
    # All queries that read the same head of the keys are one matrix.
    grouped = (queries * scale).reshape(rows, kv_heads, repeats * new, dim)
    scores = keys.scores(grouped).reshape(rows, kv_heads, repeats, new, tokens)
    if isinstance(mask, str):
        last = mx.arange(tokens - new, tokens)
        mask = None if new == 1 else last[:, None] >= mx.arange(tokens)
    scores = with_mask(scores, mask)
    if sinks is not None:
        column = sinks.astype(scores.dtype).reshape(kv_heads, repeats, 1, 1)
        column = mx.broadcast_to(column, (*scores.shape[:-1], 1))
        scores = mx.concatenate([scores, column], axis=-1)
    weights = softmax(scores)[..., :tokens]
    weights = weights.reshape(rows, kv_heads, repeats * new, tokens)
    return values.weighted(weights).reshape(rows, heads, new, dim)
