"""Blocks as plain bytes, which other threads and the disk can use.

Dtype names are those of the safetensors format (``F16``, ``BF16``, ``U32`` …).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

import mlx.core as mx

from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from ops.blockstore.blocks import BlockPayload, RawTensor
from worker.engine.mlx.kv.arrays import BlockArrays, key_name, value_name

_DTYPES = {
    "F64": mx.float64,
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "I64": mx.int64,
    "I32": mx.int32,
    "I16": mx.int16,
    "I8": mx.int8,
    "U64": mx.uint64,
    "U32": mx.uint32,
    "U16": mx.uint16,
    "U8": mx.uint8,
    "BOOL": mx.bool_,
}
#: Names of types in the safetensors format.
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class BadPayload(Exception):
    """A payload is not a block of the loaded model."""


def to_raw(block: BlockArrays) -> BlockPayload:
    """Return the block as bytes, with tensors of one shape and dtype stacked over their layers.

    A stack's name lists its layers: ``0-4,6-10.k``, of the shape [layers, 1, kv_heads, tokens,
    head_dim]. Nothing is copied: the parts of a stack are read-only views that keep the block's
    memory alive. They may be read from any thread.
    """
    alike: dict[tuple[str, mx.Dtype, tuple[int, ...]], list[int]] = defaultdict(list)
    for name, tensor in block.tensors.items():
        layer, part = name.split(".", 1)
        alike[part, tensor.dtype, tensor.shape].append(int(layer))
    # The buffer protocol has no bfloat16, so elements are exported as uint8.
    elements = {
        name: tensor.view(mx.uint8) for name, tensor in block.tensors.items() if tensor.size
    }
    mx.eval(elements)
    return {
        f"{_ranges(layers)}.{part}": RawTensor(
            DTYPE_NAMES[dtype],
            (len(layers), *shape),
            tuple(
                memoryview(elements[f"{layer}.{part}"]).toreadonly()  # type: ignore[arg-type]  # the stubs leave it out
                for layer in layers
                if f"{layer}.{part}" in elements
            ),
        )
        for (part, dtype, shape), layers in alike.items()
    }


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of one layer, as bytes.

    Attributes:
        dtype: Type of its elements.
        shape: Lengths of its axes.
        data: Its elements.
    """

    dtype: mx.Dtype
    shape: tuple[int, ...]
    data: memoryview

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes."""
        return self.data.nbytes

    def array(self) -> mx.array:
        """Return a copy of the tensor."""
        if not self.nbytes:
            return mx.zeros(self.shape, self.dtype)
        return mx.array(self.data).view(self.dtype).reshape(self.shape)  # type: ignore[arg-type]  # the stubs leave it out


class StoredTensors(Mapping[str, mx.array]):
    """The tensors of a block, each of them copied out of the bytes when it is looked up.

    Args:
        stored: The tensors by name.
    """

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self.stored = stored

    def __getitem__(self, name: str) -> mx.array:
        return self.stored[name].array()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def from_raw(payload: BlockPayload, tokens: int) -> BlockArrays:
    """Return the block that a payload of ``to_raw`` encodes.

    Nothing is copied until a tensor is looked up, so that a large checkpoint is restored layer by
    layer.

    Args:
        payload: A payload of ``to_raw``, possibly read from the disk.
        tokens: Number of tokens in the block.

    Raises:
        BadPayload: A tensor's name, dtype, shape and size do not agree.
    """
    stored: dict[str, StoredTensor] = {}
    for name, raw in payload.items():
        dtype, data = _DTYPES.get(raw.dtype), raw.joined()
        if dtype is None:
            raise BadPayload(f"{name} has the type {raw.dtype!r}")
        if dtype.size * prod(raw.shape) != raw.nbytes or any(length < 0 for length in raw.shape):
            raise BadPayload(f"{name} has {raw.nbytes} B for the shape {raw.shape}")
        ranges, _, part = name.partition(".")
        count, *shape = raw.shape or (0,)
        try:
            layers = list(islice(layers_of(ranges), count + 1))
        except ValueError as error:
            raise BadPayload(f"a tensor is called {name!r}") from error
        if len(layers) != count:
            raise BadPayload(f"{name} has the shape {raw.shape}")
        size = raw.nbytes // max(1, count)
        for at, layer in enumerate(layers):
            layer_data = data[at * size : (at + 1) * size]
            stored[f"{layer}.{part}"] = StoredTensor(dtype, tuple(shape), layer_data)
    return BlockArrays(tokens, StoredTensors(stored))


def check_fit(spec: ModelCacheSpec, block: BlockArrays, *, position: int | None = None) -> None:
    """Check that a block or checkpoint read from elsewhere has the tensors of this model.

    A block has the full-attention layers. A checkpoint has windows and states, and the
    full-attention layers unless its tokens are a whole block.

    Args:
        spec: Layers and sizes.
        block: The block or checkpoint.
        position: Tokens before the checkpoint; ``None`` for a block.

    Raises:
        BadPayload: A tensor is missing, superfluous, or of another shape or dtype.
    """
    tensors = block.tensors
    forms = tensors.stored if isinstance(tensors, StoredTensors) else tensors
    rest = {name: form.nbytes for name, form in forms.items()}
    for index, layer in enumerate(spec.layers):
        if layer.kind is LayerKind.FULL:
            whole = position is not None and block.tokens == spec.block_tokens
            kept = 0 if whole else block.tokens
        else:
            kept = layer.kept_tokens(position or 0)
        if layer.kind is LayerKind.STATE:
            parts = [name for name in rest if name.startswith(f"{index}.s")]
            size = sum(rest.pop(name) for name in parts)
            if size != (0 if position is None else layer.state_bytes):
                raise BadPayload(f"layer {index} has a state of {size} B")
        elif kept:
            _check_layer(spec, forms, index, layer, kept)
            del rest[key_name(index)], rest[value_name(index)]
    if rest:
        raise BadPayload(f"no layer of the model has {min(rest)}")


def _check_layer(
    spec: ModelCacheSpec,
    forms: Mapping[str, StoredTensor] | Mapping[str, mx.array],
    index: int,
    layer: LayerSpec,
    kept: int,
) -> None:
    for name, dim in ((key_name(index), layer.key_dim), (value_name(index), layer.value_dim)):
        expected = (1, layer.kv_heads, kept, dim)
        found = forms.get(name)
        if found is None or found.shape != expected or _mlx_name(found.dtype) != spec.dtype:
            raise BadPayload(f"{name} is not {spec.dtype} of the shape {expected}")


def dtype_name(array: mx.array) -> str:
    """Return the type of an array's elements as the safetensors format calls it."""
    return DTYPE_NAMES[array.dtype]


def _mlx_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _ranges(layers: Sequence[int]) -> str:
    """Write increasing numbers as ranges: 0, 1, 2, 4 becomes ``0-2,4``."""
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and layer == ranges[-1][-1] + 1:
            ranges[-1][1:] = [layer]
        else:
            ranges.append([layer])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def layers_of(ranges: str) -> Iterator[int]:
    """Yield the layers that a stack's name lists.

    Raises:
        ValueError: It lists something else.
    """
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
