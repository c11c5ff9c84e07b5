"""Attention and SwiGLU for x86 processors, where an exponential of MLX takes 25 to 30 ns.

MLX computes it one number at a time there, with a call into the C library for each product and sum.
As vector operations the same takes 5 ns, with the same largest error (4e-6 of the value down to
-80, 5e-7 down to -10). In a prompt of some hundred tokens, the exponentials of softmax and SwiGLU
take as long as all products of matrices.
"""

from __future__ import annotations

import platform
from functools import partial
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.activations import swiglu as swiglu_of_mlx_lm
from mlx_lm.models.base import scaled_dot_product_attention

from worker.engine.mlx.cpu import computes_on_cpu
from worker.engine.mlx.untyped import Network, replace_function

#: A polynomial for 2^f, f from -0.5 to 0.5, that is 1 at 0: relative error 2e-9 (least squares,
#: weighted again until the errors are even).
_POWERS: Final = (
    1.0,
    0.6931472029,
    0.2402264791,
    0.05550332454,
    0.009618437383,
    0.00133988798,
    0.0001535336673,
)
_LOG2_E: Final = 1.4426950408889634
#: A float32 plus 1.5 * 2^23 has its nearest integer in its lowest bits.
_ROUNDING: Final = 12582912.0
_FRACTION_BITS: Final = 23
#: Exponents of float32 that stand for 0 and for infinity.
_EXPONENT_OF_ZERO: Final = -127.0
_EXPONENT_OF_INFINITY: Final = 128.0
#: Exponentials of one call from which the function here is faster: it takes ten operations, of some
#: 10 us each.
_EXPONENTIALS_MIN: Final = 2**13
#: Scores of one chunk of queries, so that each of its arrays fits into the cache of a processor.
_CHUNK_SCORES: Final = 2**16
#: Arrays of that size that exist at a time: those of an operation are allocated before it begins.
_CHUNK_ARRAYS: Final = 8
#: Least queries of a chunk: the product of each chunk copies the keys.
_CHUNK_QUERIES_MIN: Final = 16


def has_slow_exponentials() -> bool:
    """Return whether MLX computes on a processor for which it has no vector operations."""
    return platform.machine() == "x86_64" and computes_on_cpu()


def chunk_bytes() -> int:
    """Return what attention over few keys keeps that ``mx.fast`` would not."""
    return _CHUNK_ARRAYS * _CHUNK_SCORES * mx.float32.size if has_slow_exponentials() else 0


def use_fast_swiglu(network: Network) -> None:
    """Let the layers of a network compute SwiGLU with ``exponential``, where that is faster."""
    if has_slow_exponentials():
        replace_function(network, swiglu_of_mlx_lm, swiglu)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: Any,  # noqa: ANN401 - an array, "causal" or None
    sinks: mx.array | None,
) -> mx.array:
    """Return attention [rows, heads, tokens, head_dim], as mlx-lm defines it for its models."""
    _, heads, new, _ = queries.shape
    held = keys.shape[2]
    is_float = queries.dtype == keys.dtype == mx.float32
    if not is_float or heads * new * held < _EXPONENTIALS_MIN or not has_slow_exponentials():
        attended: mx.array = scaled_dot_product_attention(
            queries, keys, values, cache=None, scale=scale, mask=mask, sinks=sinks
        )
        return attended
    queries = queries * scale
    chunk = max(_CHUNK_QUERIES_MIN, _CHUNK_SCORES // (heads * held))
    chunks: list[mx.array] = []
    for start in range(0, new, chunk):
        end = min(start + chunk, new)
        seen, part = held, mask
        if isinstance(mask, str):
            # Later keys are masked for all of them.
            seen = held - new + end
            part = mx.arange(seen - end + start, seen)[:, None] >= mx.arange(seen)
        elif mask is not None and mask.shape[-2] > 1:
            part = mask[..., start:end, :]
        # One after the other, so that the arrays of one chunk are kept at a time.
        (chosen,) = mx.depends([queries[:, :, start:end]], chunks[-1:])
        chunks.append(_of_chunk(chosen, keys[:, :, :seen], values[:, :, :seen], part, sinks))
    return chunks[0] if len(chunks) == 1 else mx.concatenate(chunks, axis=2)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Return ``silu(gate) * x``."""
    if gate.dtype != mx.float32 or gate.size < _EXPONENTIALS_MIN:
        gated: mx.array = swiglu_of_mlx_lm(gate, x)
        return gated
    return gate * x / (1.0 + exponential(-gate))


def with_mask(scores: mx.array, mask: mx.array | None) -> mx.array:
    """Return scores with a mask of booleans, or of summands, applied."""
    if mask is None:
        return scores
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, mx.finfo(scores.dtype).min)
    return scores + mask


def softmax(scores: mx.array) -> mx.array:
    """Return the softmax over the last axis, summed in float32."""
    is_float = scores.dtype == mx.float32
    if not is_float or scores.size < _EXPONENTIALS_MIN or not has_slow_exponentials():
        return mx.softmax(scores, axis=-1, precise=True)
    weights = exponential(scores - mx.max(scores, axis=-1, keepdims=True))
    return weights / mx.sum(weights, axis=-1, keepdims=True)


def exponential(x: mx.array) -> mx.array:
    """Return e^x in float32: 0 below -88.1, and infinity above 88.8."""
    powers, exponents = _powers_and_exponents(x)
    # The exponent of a float32 stands above its fraction: adding to it multiplies by a power of 2.
    bits = powers.view(mx.int32) + (exponents.view(mx.int32) << _FRACTION_BITS)
    return bits.view(mx.float32)


@partial(mx.compile, shapeless=True)
def _powers_and_exponents(x: mx.array) -> tuple[mx.array, mx.array]:
    """Return 2^f and ``_ROUNDING`` + n with e^x = 2^(f + n), n an integer and f at most 0.5."""
    exact = mx.clip(x * _LOG2_E, _EXPONENT_OF_ZERO, _EXPONENT_OF_INFINITY)
    rounded = exact + _ROUNDING
    f = exact - (rounded - _ROUNDING)
    power = mx.array(_POWERS[-1])
    for factor in reversed(_POWERS[:-1]):
        power = power * f + factor
    return power, rounded


def _of_chunk(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: mx.array | None,
    sinks: mx.array | None,
) -> mx.array:
    rows, heads, new, dim = queries.shape
    kv_heads, held = keys.shape[1:3]
    # All queries that read the same head of the keys are one matrix.
    grouped = (rows, kv_heads, heads // kv_heads * new)
    scores = queries.reshape(*grouped, dim) @ keys.swapaxes(-1, -2)
    scores = scores.reshape(rows, heads, new, held)
    scores = with_mask(scores, mask)
    highest = mx.max(scores, axis=-1, keepdims=True)
    column = None if sinks is None else sinks.astype(mx.float32)[:, None, None]
    if column is not None:
        highest = mx.maximum(highest, column)
    weights = exponential(scores - highest)
    whole = mx.sum(weights, axis=-1, keepdims=True)
    if column is not None:
        whole = whole + exponential(column - highest)
    weighted = weights.reshape(*grouped, held) @ values
    return weighted.reshape(rows, heads, new, values.shape[-1]) / whole
