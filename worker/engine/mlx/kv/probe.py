"""Derive the layout of a model's caches, or how they grow, by running short forward passes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import mlx.core as mx
import structlog
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from domain.kv.spec import BLOCK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx.kv.packed_cache import DIRECT_TOKENS_MAX
from worker.engine.mlx.kv.window_cache import (
    SLIDING_CLASSES,
    STATE_CLASSES,
    UnsupportedCache,
    is_state,
    leaves,
    make_row_caches,
)
from worker.engine.mlx.untyped import Cache, Network

#: Tokens of the two forward passes that fill the caches; a state must keep its shape.
_PROBE = ([0, 1], [0, 1, 2])


def probe_spec(model: Network, block_tokens: int = BLOCK_TOKENS) -> ModelCacheSpec:
    """Return the layers, dtypes and sizes of the model's caches, in the order of the layers.

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
    # The type of keys and values, or of the states where there are no keys.
    dtype = str(_arrays(min(found, key=is_state))[0].dtype).removeprefix("mlx.core.")
    return ModelCacheSpec(layers=layers, dtype=dtype, block_tokens=block_tokens)


_log = structlog.get_logger(__name__)

#: Tokens that the check of packed layers reads in two passes: the first pass reads a copy in full
#: precision, the second one the 8 bits themselves.
_CHECK = (list(range(2)) * DIRECT_TOKENS_MAX, [1, 0])
#: Mean difference of two logits, as a share of their range, that rounding to 8 bits explains. Of
#: random logits it is 0.1 or more, of real networks up to 0.02; single logits differ much more.
_CHECK_TOLERANCE = 0.05


def packed_spec(network: Network, spec: ModelCacheSpec) -> ModelCacheSpec:
    """Return the sizes with full-attention layers in 8 bits, but for the first and last layer."""
    caches = make_row_caches(network)
    first, last = (len(leaves([one])) for one in (caches[0], caches[-1]))
    found = len(leaves(caches))
    return spec.packed({*range(first), *range(found - last, found)})


def checked_spec(network: Network, spec: ModelCacheSpec) -> ModelCacheSpec:
    """Return ``packed_spec``, or ``spec`` with a warning where the network cannot read 8 bits."""
    packed = packed_spec(network, spec)
    layers = sum(layer.group > 0 for layer in packed.layers)
    why = "" if layers else "no layer has keys and values of one length that groups divide"
    if why := why or packed_refusal(network, packed):
        _log.warning("kv_stays_exact", why=why)
        return spec
    _log.info("kv_in_8_bits", layers=layers, of=len(spec.layers))
    return packed


def packed_refusal(network: Network, packed: ModelCacheSpec, *, computes: bool = True) -> str:
    """Return why a network cannot read packed layers; an empty text if it can.

    Args:
        computes: Whether the logits are computed and compared; else only their shapes are, which
            needs no weights.
    """
    try:
        found = _logits(network, packed)
        if not computes:
            return ""
        exact = _logits(network, None)
        spread = mx.max(exact) - mx.min(exact)
        agree = mx.mean(mx.abs(found - exact)) <= _CHECK_TOLERANCE * spread
        return "" if bool(agree.item()) else "the logits differ"
    except Exception as error:  # noqa: BLE001 - whatever a model raises on caches of another kind
        return f"its layers handle keys and values themselves ({first_sentence(error)})"


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error; those of MLX list signatures after it."""
    first, *_ = f"{type(error).__name__}: {error}".split(". ")
    return first.strip()


def _logits(network: Network, spec: ModelCacheSpec | None) -> mx.array:
    caches = make_row_caches(network, spec=spec)
    outputs = [network(mx.array([tokens]), cache=caches)[0] for tokens in _CHECK]
    return mx.concatenate(outputs).astype(mx.float32)


def _refuse_unknown(leaf: Cache) -> None:
    name = type(leaf).__name__
    if getattr(leaf, "keep", 0):
        raise UnsupportedCache(f"a {name} that always keeps its first {leaf.keep} tokens")
    if type(leaf) not in (KVCache, *SLIDING_CLASSES, *STATE_CLASSES):
        raise UnsupportedCache(f"the cache class {name} is not known")


def _state_shapes(leaf: Cache) -> list[Any]:
    if not is_state(leaf):
        return []
    return [None if array is None else (array.shape, array.dtype) for array in leaf.cache]


def _layer(leaf: Cache, index: int) -> LayerSpec:
    arrays = _arrays(leaf)
    if any(array is None for array in arrays):
        raise UnsupportedCache(f"cache {index}, a {type(leaf).__name__}, stays empty")
    if is_state(leaf):
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


def _arrays(leaf: Cache) -> list[Any]:
    return list(leaf.cache) if is_state(leaf) else [leaf.keys, leaf.values]


#: Tokens in the forward passes of the probe. The caches of mlx-lm grow by 256 tokens at once, so
#: the first pass shows a whole step of growth, and the others the true slope.
_GROWTH_PROBE = (1, 256, 256)
#: Attributes by which the caches of mlx-lm bound the tokens that they keep, and the tokens by which
#: they may exceed the bound beside those of a piece.
_BOUNDS = {"max_size": 0, "chunk_size": 256}

_KV_AXES = 4


class FoundRows(Protocol):
    """Running sequences, as ``RunningSequences`` offers them."""

    def find(self, uid: int) -> tuple[list[Any], list[int]] | None:
        """Return a sequence's caches and the ids of the tokens in them."""
        ...


class GrowthSizes:
    """Upper estimates of what contexts take, corrected by what running sequences really take.

    Each cache is a line: its bytes after the first token, and its steepest growth. A cache that
    announces a bound grows no further.

    Args:
        network: An mlx-lm model with caches of any class.
        block_tokens: Tokens by which estimates grow at once.
        piece_tokens: Most prompt tokens computed in one piece.
    """

    def __init__(self, network: Network, *, block_tokens: int, piece_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._lines = _measured_lines(network, piece_tokens)
        #: Factor on the estimates, at least 1.
        self._correction = 1.0

    def live_bytes(self, tokens: int) -> int:
        """Return the bytes of the caches of a context of ``tokens``."""
        assert tokens >= 0, "a context has a length"
        estimate = sum(
            first + slope * max(0.0, min(tokens, bound) - 1) for first, slope, bound in self._lines
        )
        return math.ceil(self._correction * estimate)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks a context of ``tokens`` takes."""
        return -(-tokens // self.block_tokens)

    def observe(self, rows: FoundRows, uids: Iterable[int]) -> None:
        """Raise the estimates where a running sequence takes more."""
        for uid in uids:
            found = rows.find(uid)
            if found is None:
                continue
            caches, tokens = found
            estimate = self.live_bytes(len(tokens))
            actual = sum(map(_cache_bytes, leaves(caches)))
            if actual > estimate:
                self._correction *= actual / max(1, estimate)


#: Sizes of the contexts of a model, or estimates of them.
ContextSizes: TypeAlias = ModelCacheSpec | GrowthSizes


def _measured_lines(network: Network, piece_tokens: int) -> list[tuple[int, float, float]]:
    """Return bytes after one token, bytes for each further one, and most tokens, of each cache."""
    caches = make_prompt_cache(network)
    found, sizes = leaves(caches), []
    for tokens in _GROWTH_PROBE:
        mx.eval(network(mx.array([[0] * tokens]), cache=caches))
        sizes.append([_cache_bytes(leaf) for leaf in found])
    lines = []
    for leaf, at in zip(found, zip(*sizes, strict=True), strict=True):
        growths = [(b - a) / n for a, b, n in zip(at, at[1:], _GROWTH_PROBE[1:], strict=False)]
        # A bounded cache may drop old tokens while it grows.
        growths.append(_token_bytes(leaf))
        bounds = [
            bound + slack + piece_tokens
            for name, slack in _BOUNDS.items()
            if (bound := getattr(leaf, name, None))
        ]
        lines.append((at[0], max(growths), min(bounds, default=math.inf)))
    return lines


def _token_bytes(leaf: Cache) -> float:
    """Return the bytes of one token in arrays of the shape [1, heads, tokens, head_dim]."""
    arrays = [getattr(leaf, name, None) for name in ("keys", "values")]
    shaped = [array for array in arrays if isinstance(array, mx.array) and array.ndim == _KV_AXES]
    return sum(array.nbytes / array.shape[2] for array in shaped if array.shape[2])


def _cache_bytes(leaf: Cache) -> int:
    try:
        return int(leaf.nbytes)
    except (AttributeError, NotImplementedError):
        arrays: list[tuple[str, Any]] = tree_flatten(leaf.state)  # type: ignore[assignment]
        return sum(array.nbytes for _, array in arrays if isinstance(array, mx.array))
