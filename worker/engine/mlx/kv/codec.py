"""A KV block as MLX arrays, and its bytes on the disk, which are the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

import mlx.core as mx

from domain.kv.spec import PACKED_BITS, LayerKind, LayerSpec, ModelCacheSpec
from ops.blockstore.blocks import BlockPayload, RawTensor

#: Axis of the tokens in keys and values of the shape [1, kv_heads, tokens, head_dim].
TOKEN_AXIS = 2


@dataclass(frozen=True, slots=True)
class BlockArrays:
    """What every layer stores for one run of tokens.

    Attributes:
        tokens: Length of the run: ``spec.block_tokens``, or fewer in a tail block.
        tensors: Tensors by name. ``3.k`` and ``3.v`` are keys and values of attention layer 3,
            of the shape [1, kv_heads, kept_tokens, head_dim] and the model's KV dtype. A layer in
            8 bits has ``3.words``, ``3.scales`` and ``3.biases`` instead; see ``PackedKVCache``.
            ``4.s0``, ``4.s1`` … are the arrays of a layer with a recurrent state, after the last
            token of the run. Layers are numbered as in the model's ``ModelCacheSpec``. A
            full-attention layer keeps all tokens of the run, a sliding-window layer the last
            ones that fit its window. No cache and no other block shares this memory.
    """

    tokens: int
    tensors: Mapping[str, mx.array]

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


#: Names of the arrays of a full-attention layer, in tensors and in its cache.
_EXACT_PARTS = (("k", "keys"), ("v", "values"))
_PACKED_PARTS = (("words", "words"), ("scales", "scales"), ("biases", "biases"))


def part_names(layer: LayerSpec) -> tuple[tuple[str, str], ...]:
    """Return the names of the arrays of an attention layer: of the tensor, and of the attribute."""
    return _PACKED_PARTS if layer.group else _EXACT_PARTS


@dataclass(frozen=True, slots=True)
class CachePart:
    """One array of the cache of an attention layer, [1, heads, slots, dim].

    Attributes:
        name: The end of its tensor's name.
    """

    name: str
    attribute: str
    heads: int
    dim: int
    dtype: mx.Dtype

    def shape(self, tokens: int) -> tuple[int, int, int, int]:
        """Return the shape with that many slots."""
        return 1, self.heads, tokens, self.dim


def parts_of(spec: ModelCacheSpec, layer: LayerSpec) -> list[CachePart]:
    """Return the arrays of the cache of an attention layer."""
    heads, dtype = layer.kv_heads, getattr(mx, spec.dtype)
    dims, dtypes = [layer.key_dim, layer.value_dim], [dtype, dtype]
    if layer.group:
        heads, dtypes = 2 * heads, [mx.uint32, dtype, dtype]
        words, groups = layer.key_dim * PACKED_BITS // _WORD_BITS, layer.key_dim // layer.group
        dims = [words, groups, groups]
    forms = zip(part_names(layer), dims, dtypes, strict=True)
    return [
        CachePart(name, attribute, heads, dim, dtype) for (name, attribute), dim, dtype in forms
    ]


#: Bits of an element of packed values.
_WORD_BITS = 32
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
    """One tensor of one layer, as bytes."""

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
    """The tensors of a block, each of them copied out of the bytes when it is looked up."""

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


def decoded(
    spec: ModelCacheSpec, payload: BlockPayload, tokens: int, *, position: int | None = None
) -> BlockArrays:
    """Return the block or checkpoint of a model that a payload of ``to_raw`` encodes.

    Args:
        tokens: Number of tokens that its name covers.
        position: Tokens before a checkpoint; ``None`` for a block.

    Raises:
        BadPayload: The payload is not a block of this model, or has another form.
    """
    block = from_raw(payload, tokens)
    check_fit(spec, block, position=position)
    return block


def check_fit(spec: ModelCacheSpec, block: BlockArrays, *, position: int | None = None) -> None:
    """Check that a block or checkpoint read from elsewhere has the tensors of this model.

    A block has the full-attention layers. A checkpoint has windows and states, and the
    full-attention layers unless its tokens are a whole block.

    Args:
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
            for part in parts_of(spec, layer):
                name = f"{index}.{part.name}"
                found = forms.get(name)
                if found is None or (found.shape, found.dtype) != (part.shape(kept), part.dtype):
                    raise BadPayload(f"{name} is not {part.dtype} of the shape {part.shape(kept)}")
                del rest[name]
    if rest:
        raise BadPayload(f"no layer of the model has {min(rest)}")


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
