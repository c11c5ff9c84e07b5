"""The cache of a sliding-window layer, and the caches of a new row.

mlx-lm's ``RotatingKVCache`` overwrites its oldest token in place: once it has wrapped around, no
token can be taken back. ``WindowKVCache`` stores the tokens in order and keeps some more than the
window, so that the last ones can be trimmed and slices are contiguous. It also takes the place of
``ChunkedKVCache``, whose layers attend within chunks of the sequence and mask the rest themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from domain.kv.spec import (
    BLOCK_TOKENS,
    WINDOW_SLACK_TOKENS,
    WINDOW_STEP_TOKENS,
    ModelCacheSpec,
)
from worker.engine.mlx.kv.packed_cache import PackedKVCache
from worker.engine.mlx.untyped import Cache, Network

_TOKEN_AXIS = 2


class WindowKVCache:
    """Keys and values of the last tokens of one sequence, in order, in one layer.

    The last ``window + slack`` tokens are kept. The buffer has room for ``step`` tokens more, so
    that the kept tokens are copied to its front only once in ``step`` tokens.

    Args:
        window: Tokens that a query sees, its own included.
        slack: Tokens that ``trim`` can take back at any length.
        step: Tokens by which the buffer grows.
        keeps_last: Whether ``keys_and_values`` is called after a piece of any length, by layers
            that have no keys of their own.
        in_chunks: Whether the layer attends within chunks of ``window`` tokens of the sequence.

    Attributes:
        keys: The buffer, [1, kv_heads, slots, head_dim]; ``None`` while it is empty.
        offset: Tokens of the sequence that the cache has received.
        length: Tokens that are stored, in the first slots.
    """

    def __init__(
        self,
        window: int,
        *,
        slack: int = WINDOW_SLACK_TOKENS,
        step: int = WINDOW_STEP_TOKENS,
        keeps_last: bool = False,
        in_chunks: bool = False,
    ) -> None:
        assert window > 0, "a token sees itself"
        assert slack >= 0, "a slack is a number of tokens"
        assert step > 0, "the buffer grows by some tokens"
        self.window = window
        self.slack = slack
        self.step = step
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0
        self.length = 0
        self.in_chunks = in_chunks
        self._keeps_last = keeps_last
        #: Tokens that the last call of ``update_and_fetch`` returned.
        self._fetched = 0
        #: What it returned, where the buffer stores less.
        self._last: tuple[mx.array, mx.array] | None = None

    @property
    def max_size(self) -> int:
        """Return the window, under the name that mlx-lm's caches give it."""
        return self.window

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, int, int]:
        """Buffers of keys and values, tokens received, and tokens stored."""
        return self.keys, self.values, self.offset, self.length

    @state.setter
    def state(self, state: tuple[mx.array | None, mx.array | None, int, int]) -> None:
        self.keys, self.values, self.offset, self.length = state
        assert self.length >= min(self.offset, self.window - 1), "the next token sees the window"
        self._fetched, self._last = min(self.length, self.window), None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes

    @property
    def start_position(self) -> int:
        """Return where the keys begin that the next piece gets, for masks of chunks."""
        return self.offset - self._seen()

    def maybe_trim_front(self) -> None:
        """Do nothing: ``update_and_fetch`` leaves out what is beyond the window."""

    def mask_of_chunks(self, tokens: int) -> mx.array:
        """Return the mask that a network of chunks makes for a row of so many new tokens."""
        assert self.in_chunks, "the window is the length of a chunk"
        keys = mx.arange(self.start_position, self.offset + tokens)
        queries = mx.arange(self.offset, self.offset + tokens)[:, None]
        return (keys // self.window == queries // self.window) & (keys <= queries)

    @property
    def trimmable(self) -> int:
        """Tokens that ``trim`` can take back: at least ``slack``, or all where none is dropped."""
        if self.length == self.offset:
            return self.length
        return max(0, self.length - (self.window - 1))

    def trim(self, n: int) -> int:
        """Take back the last ``n`` tokens, at most ``trimmable``; return how many."""
        n = min(n, self.trimmable)
        self.offset -= n
        self.length -= n
        self._fetched, self._last = min(self.length, self.window), None
        return n

    def size(self) -> int:
        """Return the tokens that are stored."""
        return self.length

    def empty(self) -> bool:
        """Return whether the cache has no buffer yet."""
        return self.keys is None

    def slots_for(self, tokens: int) -> int:
        """Return the slots of the buffer once it stores ``tokens`` or has dropped some."""
        steps = -(-tokens // self.step)
        return min(steps * self.step, self._slots_max)

    def make_mask(
        self,
        N: int,  # noqa: N803 - the name that mlx-lm's models use
        return_array: bool = False,  # noqa: FBT001, FBT002 - as mlx-lm's caches
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """Return the mask for ``N`` new tokens over what ``update_and_fetch`` will return.

        Args:
            return_array: Whether several tokens need an array even where ``"causal"`` would do.
            window_size: Window of the layer that asks; by default the cache's own.
        """
        window = window_size or self.window
        seen = self._seen()
        if N == 1:
            # A layer may have a shorter window than the cache that it shares.
            return mx.arange(seen + 1) > seen - window if seen + 1 > window else None
        if seen + N > window or return_array:
            mask: mx.array = create_causal_mask(N, seen, window_size=window)
            return mask
        return "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append new tokens; return all keys and values that one of them sees, in order.

        Args:
            keys: Of the new tokens, [1, kv_heads, new tokens, head_dim].

        Returns:
            The last ``min(length, window - 1)`` tokens before the new ones, and the new ones.
        """
        new, self._last = keys.shape[_TOKEN_AXIS], None
        seen, total, slots_max = self._seen(), self.length + new, self._slots_max
        self._fetched = seen + new
        kept = self.length
        if total > slots_max:
            kept = min(kept, max(self.window - 1, self.window + self.slack - new))
        if self.keys is not None and total <= self.keys.shape[_TOKEN_AXIS]:
            self._write(keys, values)
        elif kept + new <= slots_max:
            self._rebuild(kept, keys, values)
        else:
            return self._replace(seen, keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return again what the last call of ``update_and_fetch`` returned."""
        if self._last is not None:
            return self._last
        assert self.keys is not None, "the cache is empty"
        assert self.values is not None, "the cache is empty"
        assert self._fetched <= self.length, "a part of the last piece is dropped"
        first, stop = self.length - self._fetched, self.length
        return self.keys[..., first:stop, :], self.values[..., first:stop, :]

    @property
    def _slots_max(self) -> int:
        return self.window + self.slack + self.step

    def _seen(self) -> int:
        """Return how many stored tokens the next one sees."""
        return min(self.length, self.window - 1)

    def _write(self, keys: mx.array, values: mx.array) -> None:
        """Write new tokens into free slots."""
        assert self.keys is not None, "there are free slots"
        assert self.values is not None, "there are free slots"
        new = keys.shape[_TOKEN_AXIS]
        stop = self.length + new
        self.keys[..., self.length : stop, :] = keys
        self.values[..., self.length : stop, :] = values
        self.length, self.offset = stop, self.offset + new

    def _rebuild(self, kept: int, keys: mx.array, values: mx.array) -> None:
        """Make a buffer of the last ``kept`` tokens and the new ones."""
        new = keys.shape[_TOKEN_AXIS]
        slots = self.slots_for(self.length + new)
        self.keys = _padded(self._last_of(self.keys, kept), keys, slots)
        self.values = _padded(self._last_of(self.values, kept), values, slots)
        self.length, self.offset = kept + new, self.offset + new

    def _replace(self, seen: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return the last ``seen`` tokens and the new ones; store what the buffer holds of them."""
        joined = (
            mx.concatenate([*self._last_of(self.keys, seen), keys], axis=_TOKEN_AXIS),
            mx.concatenate([*self._last_of(self.values, seen), values], axis=_TOKEN_AXIS),
        )
        kept, slots = self.window + self.slack, self._slots_max
        self.keys, self.values = (_padded([], one[..., -kept:, :], slots) for one in joined)
        self.length, self.offset = kept, self.offset + keys.shape[_TOKEN_AXIS]
        self._last = joined if self._keeps_last else None
        return joined

    def _last_of(self, buffer: mx.array | None, tokens: int) -> list[mx.array]:
        """Return the last stored tokens of a buffer: one array, or none."""
        if buffer is None or not tokens:
            return []
        return [buffer[..., self.length - tokens : self.length, :]]


def make_row_caches(
    network: Network, step: int = BLOCK_TOKENS, spec: ModelCacheSpec | None = None
) -> list[Any]:
    """Return empty caches for one sequence, one for each layer.

    Args:
        step: Tokens by which their buffers grow; those of windows by at most
            ``WINDOW_STEP_TOKENS``.
        spec: Which layers are in 8 bits; ``None`` for none.
    """
    caches = make_prompt_cache(network)
    # Where there are fewer caches than layers, some layers read the cache of another one.
    shares = len(caches) < len(getattr(network, "layers", ()))
    rows = [_row_cache(cache, step, shares=shares) for cache in caches]
    # The last ids of tokens, which start as zeros in mlx-lm too, but there grow to their length.
    ngrams = getattr(getattr(network, "model", None), "ngram_embeddings", None)
    if ngrams is not None:
        rows[0][0] = mx.zeros((1, ngrams.n - 1), mx.int64)
    if spec is None or not any(layer.group for layer in spec.layers):
        return rows
    found = zip(leaves(rows), spec.layers, strict=True)
    packed = (PackedKVCache(layer.group, step) if layer.group else leaf for leaf, layer in found)
    return nest(rows, packed)


def _row_cache(cache: Cache, step: int, *, shares: bool) -> Cache:
    if type(cache) is CacheList:
        return CacheList(*(_row_cache(one, step, shares=shares) for one in cache.caches))
    # One that always keeps its first tokens has another order.
    if type(cache) is RotatingKVCache and not cache.keep:
        return WindowKVCache(cache.max_size, step=min(step, WINDOW_STEP_TOKENS), keeps_last=shares)
    if type(cache) is ChunkedKVCache:
        return WindowKVCache(cache.chunk_size, step=min(step, WINDOW_STEP_TOKENS), in_chunks=True)
    if type(cache) is KVCache:
        cache.step = step
    return cache


def nest(template: Sequence[Any], flat: Iterator[Any]) -> list[Any]:
    """Return flat caches with the nesting of ``template``."""
    return [
        CacheList(*nest(cache.caches, flat)) if type(cache) is CacheList else next(flat)
        for cache in template
    ]


def _padded(kept: list[mx.array], new: mx.array, slots: int) -> mx.array:
    """Return kept and new tokens in a buffer of ``slots``."""
    parts = [*kept, new]
    free = slots - sum(part.shape[_TOKEN_AXIS] for part in parts)
    if free:
        rows, heads, _, dim = new.shape
        # A view of one element, which takes no memory of its own.
        zero = mx.zeros((1, 1, 1, 1), new.dtype)
        parts.append(mx.broadcast_to(zero, (rows, heads, free, dim)))
    return mx.concatenate(parts, axis=_TOKEN_AXIS)


# Compared by exact class, because a subclass may store other data in the same attributes.
SLIDING_CLASSES = (WindowKVCache,)
STATE_CLASSES = (ArraysCache,)
#: Those that can take back their last ``WINDOW_SLACK_TOKENS`` at any length.
TRIMMABLE_CLASSES = (KVCache, PackedKVCache, *SLIDING_CLASSES)


class UnsupportedCache(Exception):
    """A model's caches cannot be cut into blocks and restored; it runs without a prefix cache."""


def is_state(leaf: Cache) -> bool:
    """Return whether a cache is the state of a recurrent layer, which has no length."""
    return type(leaf) in STATE_CLASSES


def leaves(caches: Iterable[Any]) -> list[Any]:
    """Return the caches with every ``CacheList`` flattened, in the order of the model's layers."""
    found: list[Any] = []
    for cache in caches:
        if type(cache) is CacheList:
            found += leaves(cache.caches)
        else:
            found.append(cache)
    return found
