"""Rows of unequal length: one layer's cache without padding, and attention over it.

In a pass over several rows each new token is a row of the batch, of one token. The new tokens of
a row are brought together only to be written to its caches, and for attention. So nothing is padded
where rows have unequal numbers of new tokens.

Multi-head latent attention (MLA) computes a part of its scores itself and passes them as the mask,
so that no mask of its own can reach the rows. There the new tokens of a row stay apart, each with
the keys up to its own: ``RaggedKind.BY_TOKEN``.

Other layers read the shapes of their keys, choose some of them, or count positions. There each row
passes the attention module alone, with its own caches, and the rest of the layer computes all rows
at once: ``RaggedKind.BY_ROW``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import CacheList

from worker.engine.mlx.kv.cpu_attention import attention
from worker.engine.mlx.kv.packed_cache import PackedKV, PackedKVCache, attention_of_row
from worker.engine.mlx.kv.probe import first_sentence
from worker.engine.mlx.kv.window_cache import (
    WindowKVCache,
    is_state,
    leaves,
    make_row_caches,
    nest,
)
from worker.engine.mlx.untyped import Cache, Module, Network, replace_function


class RaggedKind(IntEnum):
    """How a network computes rows of unequal length in one pass.

    Attributes:
        NONE: It cannot.
        BY_TOKEN: Each new token attends apart: for decode and short drafts, not for prompts.
        BY_ROW: The new tokens of a row attend together; an attention module computes row after row.
        WHOLE: The new tokens of a row attend together.
    """

    NONE = 0
    BY_TOKEN = 1
    BY_ROW = 2
    WHOLE = 3


@dataclass(frozen=True, slots=True)
class RaggedTensor:
    """Keys or values of several rows.

    Attributes:
        rows: One array for each row, of the shape [1, kv_heads, tokens of the row, head_dim], or
            the same in 8 bits.
        lengths: New tokens of each row in this forward pass.
    """

    rows: tuple[Any, ...]
    lengths: tuple[int, ...]

    @property
    def dtype(self) -> mx.Dtype:
        """Return the type of the elements, in full precision."""
        found: mx.Dtype = self.rows[0].dtype
        return found

    def astype(self, dtype: mx.Dtype) -> RaggedTensor:
        """Return the rows with elements of another type."""
        return RaggedTensor(tuple(row.astype(dtype) for row in self.rows), self.lengths)

    def swapaxes(self, one: int, other: int) -> RaggedFactor:
        """Return the rows with two axes exchanged, as the second factor of a product."""
        rows = tuple(row.swapaxes(one, other) for row in self.rows)
        return RaggedFactor.of(RaggedTensor(rows, self.lengths))


class RaggedFactor(mx.array):
    """The second factor of a product of arrays: a tensor for each row.

    ``array @ factor`` accepts arrays only, and asks an instance of a subclass first. The array
    itself has no meaning.
    """

    tensor: RaggedTensor

    @classmethod
    def of(cls, tensor: RaggedTensor) -> RaggedFactor:
        """Return a factor."""
        factor = cls(0)
        factor.tensor = tensor
        return factor

    def __rmatmul__(self, first: mx.array) -> RaggedMask:  # type: ignore[misc]  # of rows
        """Return the products of the new tokens of each row, [new tokens, heads, 1, dim]."""
        parts = zip(rows_of(first, self.tensor.lengths), self.tensor.rows, strict=True)
        return RaggedMask(tuple(one @ other for one, other in parts))


@dataclass(frozen=True, slots=True)
class RaggedMask:
    """Masks or scores of several rows: for each row an array, ``"causal"`` or ``None``."""

    rows: tuple[mx.array | str | None, ...]


class RaggedCache:
    """The caches of one attention layer for one forward pass over several rows.

    Args:
        rows: The layer's cache of each row: ``KVCache``, ``PackedKVCache`` or ``WindowKVCache``.
        offset: Position of each new token, row by row, of the shape [new tokens].
        kind: ``BY_TOKEN``: each new token is fetched with the keys up to its own. Not for windows.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        offset: mx.array,
        lengths: Sequence[int],
        kind: RaggedKind,
    ) -> None:
        self.rows = rows
        self.lengths = tuple(lengths)
        self._by_token = kind is RaggedKind.BY_TOKEN and max(lengths) > 1
        self.offset: mx.array | int = offset
        self._in_chunks = isinstance(rows[0], WindowKVCache) and rows[0].in_chunks
        if kind is RaggedKind.BY_ROW and self._in_chunks:
            # The network makes one mask of them, which ``masks_of_chunks`` replaces.
            self.offset = self.start_position = 0

    def maybe_trim_front(self) -> None:
        """Do nothing, as the cache of a row."""

    def masks_of_chunks(self) -> list[mx.array]:
        """Return the mask of each row, whose network computes masks of chunks itself."""
        if not self._in_chunks:
            raise NotImplementedError("the network computes a mask itself")
        pairs = zip(self.rows, self.lengths, strict=True)
        return [row.mask_of_chunks(length) for row, length in pairs]

    def make_mask(
        self,
        N: int,  # noqa: N803 - the name that mlx-lm's models use
        return_array: bool = False,  # noqa: FBT001, FBT002 - as mlx-lm's caches
        window_size: int | None = None,
    ) -> RaggedMask | None:
        """Return the mask of each row, or ``None`` where no row needs one."""
        del N
        if self._by_token:
            return None
        masks = tuple(
            row.make_mask(length, return_array=return_array, window_size=window_size)
            for row, length in zip(self.rows, self.lengths, strict=True)
        )
        return None if all(mask is None for mask in masks) else RaggedMask(masks)

    def update_and_fetch(
        self, keys: mx.array, values: mx.array
    ) -> tuple[RaggedTensor, RaggedTensor]:
        """Append the new tokens of each row to its cache; return all of its keys and values.

        Args:
            keys: Of the new tokens, of the shape [new tokens, kv_heads, 1, head_dim].
        """
        lengths = self.lengths
        if isinstance(self.rows[0], PackedKVCache):
            new = [rows_of(one, lengths) for one in self.rows[0].quantised(keys, values)]
            for row, *parts in zip(self.rows, *new, strict=True):
                row.append(parts)
            return self.keys_and_values()
        pairs = zip(self.rows, rows_of(keys, lengths), rows_of(values, lengths), strict=True)
        return self._tensors([row.update_and_fetch(key, value) for row, key, value in pairs])

    def keys_and_values(self) -> tuple[RaggedTensor, RaggedTensor]:
        """Return what ``update_and_fetch`` returned last, for layers without keys of their own."""
        return self._tensors([row.keys_and_values() for row in self.rows])

    def _tensors(self, fetched: Sequence[tuple[Any, Any]]) -> tuple[RaggedTensor, RaggedTensor]:
        lengths = self.lengths
        if self._by_token:
            fetched = [
                (keys[..., :end, :], values[..., :end, :])
                for (keys, values), length in zip(fetched, lengths, strict=True)
                for end in range(keys.shape[2] - length + 1, keys.shape[2] + 1)
            ]
            lengths = (1,) * len(fetched)
        return (
            RaggedTensor(tuple(keys for keys, _ in fetched), lengths),
            RaggedTensor(tuple(values for _, values in fetched), lengths),
        )


def rows_of(batch: mx.array, lengths: Sequence[int]) -> list[mx.array]:
    """Return the new tokens of each row as a view, [1, heads, length, head_dim].

    One split is cheaper than a slice for each row, in every layer of every step.

    Args:
        batch: [new tokens, heads, 1, head_dim].
    """
    borders = _borders(lengths)
    parts = mx.split(batch, borders) if borders else [batch]
    return [_turned(part) if part.shape[0] > 1 else part for part in parts]


def _borders(lengths: Sequence[int]) -> list[int]:
    """Return where the new tokens of a row end and those of the next one begin."""
    return list(accumulate(lengths))[:-1]


def _turned(part: mx.array) -> mx.array:
    """Exchange the first axis, of the new tokens of a row, and the third one, of the shape [1]."""
    return part.transpose(2, 1, 0, 3)


def pass_caches(
    rows: Sequence[Sequence[Any]],
    lengths: Sequence[int],
    states: Mapping[int, Any],
    kind: RaggedKind,
) -> list[Any]:
    """Return the caches for a pass over rows, of which a single one is computed as it is.

    Args:
        rows: The caches of each row, one for each layer.
        lengths: New tokens of each row.
        states: The states of all rows together, by the index of their layer.
    """
    flat = [leaves(caches) for caches in rows]
    if len(rows) == 1:
        return nest(rows[0], (states.get(at, one) for at, one in enumerate(flat[0])))
    # Where only recurrent layers are, there are no positions.
    first = [next((leaf.offset for leaf in found if not is_state(leaf)), 0) for found in flat]
    offset = mx.array(
        [at + new for at, length in zip(first, lengths, strict=True) for new in range(length)]
    )
    merged = [
        states[index]
        if is_state(flat[0][index])
        else RaggedCache([found[index] for found in flat], offset, lengths, kind)
        for index in range(len(flat[0]))
    ]
    return nest(rows[0], iter(merged))


def forward_rows(
    network: Network,
    rows: Sequence[Sequence[Any]],
    pieces: Sequence[Sequence[int]],
    states: Mapping[int, Any],
    kind: RaggedKind,
) -> mx.array:
    """Return the logits after each new token of the rows, row by row: [tokens, vocabulary]."""
    caches = pass_caches(rows, list(map(len, pieces)), states, kind)
    tokens = mx.array([token for piece in pieces for token in piece])
    logits: mx.array = network(tokens[None] if len(rows) == 1 else tokens[:, None], cache=caches)
    return logits[0] if len(rows) == 1 else logits[:, 0]


def _split_attention(network: Network) -> None:
    """Let the attention modules of a network compute the rows of a ragged pass one by one."""
    for layer in network.layers:
        for module in _attention_of(layer):
            plain: Any = type(module)
            if not hasattr(plain, _SPLIT):
                module.__class__ = _row_by_row(plain)


_SPLIT = "computes_row_by_row"


def _attention_of(module: Module) -> Iterator[Module]:
    """Yield the outermost parts of a layer that get a mask."""
    parts: list[tuple[str, Module]]
    parts = tree_flatten(module.children(), is_leaf=module.is_module)  # type: ignore[assignment]
    for _, part in parts:
        parameters = inspect.signature(type(part).__call__).parameters
        if any("mask" in name for name in parameters):
            yield part
        else:
            yield from _attention_of(part)


@cache
def _row_by_row(plain: Any) -> type[Any]:  # noqa: ANN401 - a class of mlx-lm
    """Return a subclass of an attention module that computes the rows of a ragged pass apart."""
    signature = inspect.signature(plain.__call__)
    own = next(iter(signature.parameters))

    def call(this: Module, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as mlx-lm's
        given = signature.bind(this, *args, **options).arguments
        given.pop(own)
        ragged = [part for part in leaves(given.values()) if isinstance(part, _RAGGED)]
        if not ragged:
            return plain.__call__(this, *args, **options)
        rows = zip(*(_of_rows(name, one, ragged[0]) for name, one in given.items()), strict=True)
        outputs = [plain.__call__(this, **dict(zip(given, row, strict=True))) for row in rows]
        return mx.concatenate([output.swapaxes(0, 1) for output in outputs])

    members = {"__call__": call, "__module__": plain.__module__, _SPLIT: True}
    return type(plain.__name__, (plain,), members)


_RAGGED = (RaggedCache, RaggedTensor)


def _of_rows(name: str, given: Any, ragged: RaggedCache | RaggedTensor) -> Sequence[Any]:  # noqa: ANN401 - as mlx-lm's
    """Return what each row gets of an argument of an attention module.

    Args:
        ragged: The first of its caches or keys.
    """
    if isinstance(given, (*_RAGGED, RaggedMask)):
        return given.rows
    if isinstance(given, CacheList):
        if any(map(is_state, leaves(given.caches))):
            raise NotImplementedError("attention has a state too")
        parts = [_of_rows(name, one, ragged) for one in given.caches]
        return [CacheList(*row) for row in zip(*parts, strict=True)]
    lengths = ragged.lengths
    if isinstance(given, mx.array) and "mask" in name:
        assert isinstance(ragged, RaggedCache), "chunks have caches"
        return ragged.masks_of_chunks()
    if isinstance(given, mx.array) and given.shape[:2] == (sum(lengths), 1):
        return [part.swapaxes(0, 1) for part in mx.split(given, _borders(lengths))]
    return [given] * len(lengths)


#: Token ids of the two rows that a network is checked with.
_CHECK_ROWS = ((0, 1, 2, 3, 4), (1, 0))
#: Largest difference of two logits, as a share of their range, that rounding explains.
_CHECK_TOLERANCE = 0.05


def ragged_attention(
    queries: mx.array,
    keys: Any,  # noqa: ANN401 - an array, or a RaggedTensor
    values: Any,  # noqa: ANN401 - an array, or a RaggedTensor
    cache: Cache,
    scale: float,
    mask: Any,  # noqa: ANN401 - an array, "causal", a RaggedMask or None
    sinks: mx.array | None = None,
) -> mx.array:
    """Return attention of queries [rows, heads, tokens, head_dim] over each row's own keys.

    Where ``keys`` are a RaggedTensor, each new token is a row: [new tokens, heads, 1, head_dim].
    """
    if isinstance(keys, PackedKV):
        return attention_of_row(queries, keys, values, scale, mask, sinks)
    if isinstance(keys, mx.array):
        return attention(queries, keys, values, scale, mask, sinks)
    if not isinstance(keys, RaggedTensor):
        quantized: mx.array = scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
        )
        return quantized
    masks = mask.rows if isinstance(mask, RaggedMask) else [mask] * len(keys.rows)
    outputs = []
    for query, key, value, row_mask in zip(
        rows_of(queries, keys.lengths), keys.rows, values.rows, masks, strict=True
    ):
        output = attention_of_row(query, key, value, scale, row_mask, sinks)
        outputs.append(_turned(output) if output.shape[2] > 1 else output)
    return mx.concatenate(outputs, axis=0)


def install_ragged_attention(network: Network, *, computes: bool = True) -> tuple[RaggedKind, str]:
    """Prepare a network for ragged rows; return how it computes them, and why not ``WHOLE``.

    The network runs two rows of unequal length together and alone, one of them with two new tokens
    unless it has recurrent layers. Where the logits differ or a model handles keys and values
    itself, its rows are computed one after the other instead.

    Args:
        computes: Whether the logits are computed and compared; else only their shapes are, which
            needs no weights.
    """
    replace_function(network, scaled_dot_product_attention, ragged_attention)
    why = ""
    try:
        has_states = any(map(is_state, leaves(make_row_caches(network))))
        lengths = (1, 1) if has_states else (2, 1)
        rows = checked_rows(network)
        pairs = zip(lengths, deepcopy(rows), strict=True)
        alone = mx.concatenate(
            [network(mx.array([[1] * length]), cache=caches)[0] for length, caches in pairs]
        )
        for kind in (RaggedKind.WHOLE, RaggedKind.BY_TOKEN, RaggedKind.BY_ROW):
            if kind is RaggedKind.BY_ROW:
                _split_attention(network)
            difference = _difference(
                network, deepcopy(rows), alone, lengths, kind, computes=computes
            )
            if not difference:
                return kind, why
            why = difference
    except Exception as error:  # noqa: BLE001 - whatever a model raises on caches of another kind
        why = first_sentence(error)
    return RaggedKind.NONE, why


def _difference(
    network: Network,
    rows: Sequence[list[Any]],
    alone: mx.array,
    lengths: Sequence[int],
    kind: RaggedKind,
    *,
    computes: bool,
) -> str:
    """Return why rows cannot be computed together so; an empty text if they can."""
    try:
        pieces = [[1] * length for length in lengths]
        together = forward_rows(network, rows, pieces, merged_states(rows), kind)
        if not computes:
            return "" if together.shape == alone.shape else "the shapes of the logits differ"
        return logits_differ(alone, together)
    except Exception as error:  # noqa: BLE001 - whatever a model raises on caches of another kind
        return first_sentence(error)


def logits_differ(expected: mx.array, found: mx.array) -> str:
    """Return "the logits differ", or an empty text where rounding explains the difference."""
    expected, found = expected.astype(mx.float32), found.astype(mx.float32)
    spread = mx.max(expected) - mx.min(expected)
    agree = mx.max(mx.abs(found - expected)) <= _CHECK_TOLERANCE * spread
    return "" if bool(agree.item()) else "the logits differ"


def checked_rows(network: Network) -> list[list[Any]]:
    """Return the caches of the two rows that a network is checked with."""
    rows = []
    for tokens in _CHECK_ROWS:
        caches = make_row_caches(network)
        network(mx.array([tokens]), cache=caches)
        rows.append(caches)
    return rows


def merged_states(rows: Sequence[Sequence[Any]]) -> dict[int, Any]:
    """Return the states of all rows together, by the index of their layer."""
    flat = [leaves(caches) for caches in rows]
    return {
        index: type(leaf).merge([found[index] for found in flat])
        for index, leaf in enumerate(flat[0])
        if is_state(leaf)
    }
