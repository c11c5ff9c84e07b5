"""Faster softmax and gate for training on a CPU.

On x86 the framework computes exponentials one element at a time, which would take half of a
training step. A product of squarings vectorises and is accurate enough for training; serving uses
the exact functions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.models import llama

_SQUARINGS = 8
_HIDDEN_SCORE = -1e4


@mx.compile
def exp_of_negative(value: mx.array) -> mx.array:
    """Return exp(value) for value <= 0, with a relative error of value^3 / 400,000."""
    step = mx.maximum(value, -40.0) * (1.0 / (1 << _SQUARINGS))
    result = 1.0 + step + 0.5 * step * step
    for _ in range(_SQUARINGS):
        result = result * result
    return result


@mx.custom_function
def _softmax(scores: mx.array) -> mx.array:
    weights = exp_of_negative(scores - mx.max(scores, axis=-1, keepdims=True))
    return weights * (1.0 / mx.sum(weights, axis=-1, keepdims=True))


@_softmax.vjp
def _softmax_vjp(_scores: Any, cotangent: mx.array, output: mx.array) -> mx.array:
    weighted = cotangent * output
    return weighted - output * mx.sum(weighted, axis=-1, keepdims=True)


@mx.compile
def _gate(gate: mx.array, up: mx.array) -> tuple[mx.array, mx.array]:
    decay = exp_of_negative(-mx.abs(gate))
    sigmoid = mx.where(gate >= 0, 1.0, decay) / (1.0 + decay)
    return gate * sigmoid * up, sigmoid


@mx.compile
def _gate_gradient(
    gate: mx.array, up: mx.array, sigmoid: mx.array, cotangent: mx.array
) -> tuple[mx.array, mx.array]:
    swish = gate * sigmoid
    return cotangent * up * (sigmoid + swish * (1.0 - sigmoid)), cotangent * swish


@mx.custom_function
def _swiglu_with_sigmoid(gate: mx.array, up: mx.array) -> tuple[mx.array, mx.array]:
    return _gate(gate, up)


@_swiglu_with_sigmoid.vjp
def _swiglu_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    return _gate_gradient(primals[0], primals[1], outputs[1], cotangents[0])


def _swiglu(gate: mx.array, up: mx.array) -> Any:
    outputs: Any = _swiglu_with_sigmoid(gate, up)
    return outputs[0]


def _attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    cache: None,
    scale: float,
    mask: mx.array | str,
) -> Any:
    """Return attention for as many query heads as key heads, without a cache."""
    assert cache is None, "training keeps no cache"
    if isinstance(mask, str):
        length = queries.shape[2]
        mask = mx.tril(mx.ones((length, length), dtype=mx.bool_))
    hidden = mx.where(mask, 0.0, _HIDDEN_SCORE)
    scores = (queries * scale) @ keys.transpose(0, 1, 3, 2) + hidden
    weights: Any = _softmax(scores)
    return weights @ values


@contextmanager
def fast_exponentials() -> Iterator[None]:
    """Make the model library use the functions of this module within the block.

    The library has no parameter for them, and an own model class could drift away from the one that
    serves. So the two names are replaced, and restored at the end.
    """
    with (
        patch.object(llama, "swiglu", _swiglu),
        patch.object(llama, "scaled_dot_product_attention", _attention),
    ):
        yield
