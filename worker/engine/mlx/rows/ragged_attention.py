"""Attention over rows of unequal length, and its installation into mlx-lm's models.

mlx-lm's models call ``mlx_lm.models.base.scaled_dot_product_attention`` by a name that each model
module imports. ``install_ragged_attention`` replaces that name in the modules of one network. Calls
without ragged keys behave as before.
"""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
import structlog
from mlx_lm.models.base import scaled_dot_product_attention

from worker.engine.mlx.kv.leaves import STATE_CLASSES, leaves
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.rows.ragged_cache import RaggedMask, RaggedTensor, ragged_caches, rows_of

_log = structlog.get_logger(__name__)

_NAME = "scaled_dot_product_attention"
#: Token ids of the two rows that a network is checked with.
_CHECK_ROWS = ((0, 1, 2, 3, 4), (1, 0))
#: Largest difference of two logits, as a share of their range, that rounding explains.
_CHECK_TOLERANCE = 0.05


def ragged_attention(
    queries: mx.array,
    keys: Any,  # noqa: ANN401 - an array, or a RaggedTensor
    values: Any,  # noqa: ANN401 - as above
    cache: Any,  # noqa: ANN401 - mlx-lm ships no types
    scale: float,
    mask: Any,  # noqa: ANN401 - an array, "causal", a RaggedMask or None
    sinks: mx.array | None = None,
) -> mx.array:
    """Return attention of queries [rows, heads, tokens, head_dim] over each row's own keys.

    Rows with fewer new tokens than ``tokens`` get zeros behind them.
    """
    if not isinstance(keys, RaggedTensor):
        plain: mx.array = scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
        )
        return plain
    tokens = queries.shape[2]
    masks = mask.rows if isinstance(mask, RaggedMask) else [mask] * len(keys.rows)
    outputs = []
    for query, key, value, row_mask, length in zip(
        rows_of(queries, keys.lengths), keys.rows, values.rows, masks, keys.lengths, strict=True
    ):
        output = scaled_dot_product_attention(
            query, key, value, cache=None, scale=scale, mask=row_mask, sinks=sinks
        )
        if length < tokens:
            output = mx.pad(output, [(0, 0), (0, 0), (0, tokens - length), (0, 0)])
        outputs.append(output)
    return mx.concatenate(outputs, axis=0)


def install_ragged_attention(network: Any) -> bool:  # noqa: ANN401 - mlx-lm ships no types
    """Prepare a network for ragged rows; return whether it computes them correctly.

    The network runs two rows of unequal length together and alone. Where the logits differ or a
    model handles keys and values itself, its rows are computed one after the other instead.
    """
    for module in {sys.modules[type(part).__module__] for part in network.modules()}:
        if getattr(module, _NAME, None) is scaled_dot_product_attention:
            setattr(module, _NAME, ragged_attention)
    try:
        together, alone = _logits_together(network), _logits_alone(network)
        spread = mx.max(alone) - mx.min(alone)
        agree = mx.max(mx.abs(together - alone)) <= _CHECK_TOLERANCE * spread
        if bool(agree.item()):
            return True
        reason = "the logits differ"
    except Exception as error:  # noqa: BLE001 - whatever a model raises on caches of another kind
        reason = f"{type(error).__name__}: {error}"
    _log.warning("rows_computed_one_by_one", why=reason)
    return False


def _prefilled(network: Any) -> list[list[Any]]:  # noqa: ANN401 - as above
    rows = []
    for tokens in _CHECK_ROWS:
        caches = make_row_caches(network)
        network(mx.array([tokens]), cache=caches)
        rows.append(caches)
    return rows


def _logits_alone(network: Any) -> mx.array:  # noqa: ANN401 - as above
    outputs = [network(mx.array([[1]]), cache=caches) for caches in _prefilled(network)]
    return mx.concatenate(outputs).astype(mx.float32)


def _logits_together(network: Any) -> mx.array:  # noqa: ANN401 - as above
    rows = _prefilled(network)
    flat = [leaves(caches) for caches in rows]
    states = {
        index: type(leaf).merge([found[index] for found in flat])
        for index, leaf in enumerate(flat[0])
        if type(leaf) in STATE_CLASSES
    }
    caches = ragged_caches(rows, [1] * len(rows), states.__getitem__)
    logits: mx.array = network(mx.array([[1]] * len(rows)), cache=caches)
    return logits.astype(mx.float32)
