"""Sizes of contexts in caches of unknown classes, from the growth of their ``nbytes``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.mlx.kv.leaves import leaves

#: Tokens in the forward passes of the probe. The caches of mlx-lm grow by 256 tokens at once, so
#: the first pass shows a whole step of growth, and the others the true slope.
_PROBE = (1, 256, 256)
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

    def __init__(self, network: Any, *, block_tokens: int, piece_tokens: int) -> None:  # noqa: ANN401 - mlx-lm ships no types
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


def _measured_lines(network: Any, piece_tokens: int) -> list[tuple[int, float, float]]:  # noqa: ANN401 - as above
    """Return bytes after one token, bytes for each further one, and most tokens, of each cache."""
    caches = make_prompt_cache(network)
    found, sizes = leaves(caches), []
    for tokens in _PROBE:
        mx.eval(network(mx.array([[0] * tokens]), cache=caches))
        sizes.append([_cache_bytes(leaf) for leaf in found])
    lines = []
    for leaf, at in zip(found, zip(*sizes, strict=True), strict=True):
        growths = [(b - a) / n for a, b, n in zip(at, at[1:], _PROBE[1:], strict=False)]
        # A bounded cache may drop old tokens while it grows.
        growths.append(_token_bytes(leaf))
        bounds = [
            bound + slack + piece_tokens
            for name, slack in _BOUNDS.items()
            if (bound := getattr(leaf, name, None))
        ]
        lines.append((at[0], max(growths), min(bounds, default=math.inf)))
    return lines


def _token_bytes(leaf: Any) -> float:  # noqa: ANN401 - as above
    """Return the bytes of one token in arrays of the shape [1, heads, tokens, head_dim]."""
    arrays = [getattr(leaf, name, None) for name in ("keys", "values")]
    shaped = [array for array in arrays if isinstance(array, mx.array) and array.ndim == _KV_AXES]
    return sum(array.nbytes / array.shape[2] for array in shaped if array.shape[2])


def _cache_bytes(leaf: Any) -> int:  # noqa: ANN401 - as above
    try:
        return int(leaf.nbytes)
    except (AttributeError, NotImplementedError):
        arrays: list[tuple[str, Any]] = tree_flatten(leaf.state)  # type: ignore[assignment]
        return sum(array.nbytes for _, array in arrays if isinstance(array, mx.array))
