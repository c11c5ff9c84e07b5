"""A network that remembers as much as a 12B model and computes next to nothing.

Its prompt tokens attend to nothing, so that 20,000 of them are computed in seconds. A decoded token
attends to all keys and values, so that everything that was restored is read.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache

from bench.memory.shapes import VOCABULARY

#: Half of Mistral-Nemo-12B: 40 layers with 8 heads of 128 in two bytes an element.
LAYERS, KV_HEADS, HEAD_DIM = 40, 2, 128


class _Layer(Module):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no types for it
        self.of_keys = _table()
        self.of_values = _table()

    def __call__(self, tokens: mx.array, hidden: mx.array, cache: Any) -> mx.array:
        every_key, every_value = cache.update_and_fetch(
            _by_head(self.of_keys[tokens]), _by_head(self.of_values[tokens])
        )
        if tokens.shape[1] > 1:
            return hidden
        seen = scaled_dot_product_attention(
            _by_head(hidden), every_key, every_value, cache=cache, scale=HEAD_DIM**-0.5, mask=None
        )
        added: mx.array = hidden + seen.transpose(0, 2, 1, 3).reshape(hidden.shape)
        return added


class LongNetwork(Module):
    """Has the interface of an mlx-lm model."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.table = _table()
        self.layers = [_Layer() for _ in range(LAYERS)]

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Return logits, [rows, tokens, vocabulary]."""
        hidden = self.table[inputs]
        cache = [KVCache() for _ in self.layers] if cache is None else cache
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            hidden = layer(inputs, hidden, layer_cache)
        logits: mx.array = hidden @ self.table.T
        return logits


def long_network() -> LongNetwork:
    """Return the network with random weights, the same in every process."""
    mx.random.seed(3)
    network = LongNetwork()
    mx.eval(network.parameters())  # type: ignore[no-untyped-call]  # as above
    return network


def _table() -> mx.array:
    table: mx.array = mx.random.normal((VOCABULARY, KV_HEADS * HEAD_DIM)) / HEAD_DIM**0.5
    return table


def _by_head(hidden: mx.array) -> mx.array:
    """Return [rows, heads, tokens, head_dim] of [rows, tokens, all heads]."""
    rows, length, _ = hidden.shape
    heads: mx.array = hidden.reshape(rows, length, KV_HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
    return heads
