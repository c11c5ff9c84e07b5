"""A KV block as MLX arrays, and its bytes on the disk: unchanged, or quantised to 8 bits.

A block that was read back holds the dequantised values. Parked contexts are packed in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from types import MappingProxyType

import mlx.core as mx

from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from ops.blockstore.blocks import BlockPayload, RawTensor
from worker.cachestore.tier import Storage

#: Axis of the tokens in keys and values of the shape [1, kv_heads, tokens, head_dim].
TOKEN_AXIS = 2


@dataclass(frozen=True, slots=True)
class BlockArrays:
    """What every layer stores for one run of tokens.

    Attributes:
        tokens: Length of the run: ``spec.block_tokens``, or fewer in a tail block.
        tensors: Tensors by name. ``3.k`` and ``3.v`` are keys and values of attention layer 3,
            of the shape [1, kv_heads, kept_tokens, head_dim] and the model's KV dtype.
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


def key_name(layer: int) -> str:
    """Return the tensor name of an attention layer's keys."""
    return f"{layer}.k"


def value_name(layer: int) -> str:
    """Return the tensor name of an attention layer's values."""
    return f"{layer}.v"


def state_name(layer: int, index: int) -> str:
    """Return the tensor name of one array of a layer's recurrent state."""
    return f"{layer}.s{index}"


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
        if found is None or found.shape != expected or str(found.dtype) != f"mlx.core.{spec.dtype}":
            raise BadPayload(f"{name} is not {spec.dtype} of the shape {expected}")


def dtype_name(array: mx.array) -> str:
    """Return the type of an array's elements as the safetensors format calls it."""
    return DTYPE_NAMES[array.dtype]


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


#: Elements of one head that share a scale and a bias; the largest size that divides head_dim is
#: used. ``mx.quantize`` has kernels for these sizes; 128 would save 3 % more bytes and lose more
#: precision.
GROUP_SIZES = (64, 32)
BITS = 8
#: Part of the fingerprint of quantised blocks. Change it with any change of their format.
_FORM = "int8-1"
#: Values in one uint32 element of the packed tensor.
_PACKED = 32 // BITS
#: Types of keys and values that can be quantised.
FLOATS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class BlockCodec:
    """Encodes blocks of one model to bytes and decodes them. Belongs to the engine thread.

    Quantisation is the affine scheme of ``mx.quantize``: each group of elements becomes
    ``q * scale + bias``. A tensor ``3.k`` of the shape [1, kv_heads, tokens, head_dim] is written
    as ``3.k.q`` (uint32, four values each: [..., head_dim / 4]), and ``3.k.s`` and ``3.k.b``
    (float32: [..., head_dim / group]). Scales are float32 because float16 scales raise the error
    by half. Recurrent states and heads whose length no group size divides are written unchanged.
    """

    def __init__(self, spec: ModelCacheSpec, storage: Storage = Storage.EXACT) -> None:
        self._spec = spec
        quantises = storage is Storage.INT8 and spec.dtype in FLOATS
        self._groups = dict(quantised_groups(spec)) if quantises else {}

    @property
    def lossy(self) -> bool:
        """Whether ``decode(encode(block))`` may differ from the block."""
        return bool(self._groups)

    @property
    def kv_dtype(self) -> str:
        """The stored element format, a part of the block fingerprint."""
        return f"{self._spec.dtype}:{_FORM}" if self.lossy else self._spec.dtype

    def encode(self, block: BlockArrays) -> BlockPayload:
        """Return the payload of a block; see ``to_raw``."""
        if not self.lossy:
            return to_raw(block)
        tensors = dict(block.tensors)
        for name, group in self._groups.items():
            if name not in tensors:
                continue
            exact = tensors.pop(name).astype(mx.float32)
            parts = mx.quantize(exact, group_size=group, bits=BITS)
            tensors |= zip(_part_names(name), parts, strict=True)
        return to_raw(BlockArrays(block.tokens, tensors))

    def decode(
        self, payload: BlockPayload, tokens: int, *, position: int | None = None
    ) -> BlockArrays:
        """Return the block or checkpoint that a payload encodes, in the model's KV dtype.

        Quantised tensors are dequantised at once, others are copied when they are looked up.

        Args:
            payload: A payload of ``encode``, possibly read from the disk.
            tokens: Number of tokens that its name covers.
            position: Tokens before a checkpoint; ``None`` for a block.

        Raises:
            BadPayload: The payload is not a block of this model, or has another storage format.
        """
        block = from_raw(payload, tokens)
        if self.lossy:
            tensors = dict(block.tensors)
            for name, group in self._groups.items():
                if not any(part in tensors for part in (name, *_part_names(name))):
                    continue
                packed, scales, biases = self._parts(tensors, name, group)
                exact = mx.dequantize(packed, scales, biases, group_size=group, bits=BITS)
                tensors[name] = exact.astype(FLOATS[self._spec.dtype])
            block = BlockArrays(tokens, MappingProxyType(tensors))
            mx.eval(tensors)
        check_fit(self._spec, block, position=position)
        return block

    def _parts(self, tensors: dict[str, mx.array], name: str, group: int) -> list[mx.array]:
        """Remove and return the packed values, scales and biases of one tensor.

        Checks that the three parts fit each other. ``check_fit`` checks the shape of the result.
        """
        if name in tensors:
            raise BadPayload(f"{name} is there unquantised")
        found = []
        for part in _part_names(name):
            if part not in tensors:
                raise BadPayload(f"{part} is missing")
            found.append(tensors.pop(part))
        packed, scales, biases = found
        if (packed.dtype, scales.dtype, biases.dtype) != (mx.uint32, mx.float32, mx.float32):
            raise BadPayload(f"the parts of {name} have the wrong types")
        whole = (*packed.shape[:-1], packed.shape[-1] * _PACKED // group) if packed.ndim else ()
        if not packed.size or packed.shape[-1] * _PACKED % group:
            raise BadPayload(f"{name} has no whole groups")
        if not scales.shape == biases.shape == whole:
            raise BadPayload(f"the parts of {name} have the shapes of different tensors")
        return found


def quantised_groups(spec: ModelCacheSpec) -> Iterator[tuple[str, int]]:
    """Yield the names of the tensors that can be quantised, each with its group size."""
    for index, layer in enumerate(spec.layers):
        for name, dim in ((key_name(index), layer.key_dim), (value_name(index), layer.value_dim)):
            group = next((size for size in GROUP_SIZES if dim and dim % size == 0), None)
            if group is not None:
                yield name, group


def _part_names(name: str) -> tuple[str, str, str]:
    return f"{name}.q", f"{name}.s", f"{name}.b"


#: Part of the fingerprint of blocks, which are computed from contexts that may have been packed.
_PACKED_FORM = "ram-int8-1"
#: Bytes of a tensor that are quantised at once; their float32 copy takes up to twice as much.
_AT_ONCE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Keys or values of one layer.

    Attributes:
        parts: Packed values, scales and biases; their third axis is that of the tokens.
        group: Elements that share a scale and a bias.
    """

    parts: tuple[mx.array, mx.array, mx.array]
    group: int
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Size of the parts in bytes."""
        return sum(part.nbytes for part in self.parts)

    def unpacked(self, first: int, last: int) -> mx.array:
        """Return the tokens from ``first`` to ``last``, dequantised and not evaluated."""
        packed, scales, biases = (part[:, :, first:last] for part in self.parts)
        exact = mx.dequantize(packed, scales, biases, group_size=self.group, bits=BITS)
        return exact.astype(self.dtype)

    def cut(self, first: int, last: int) -> PackedTensor:
        """Return a copy of the tokens from ``first`` to ``last``."""
        packed, scales, biases = (mx.contiguous(part[:, :, first:last]) for part in self.parts)
        mx.eval(packed, scales, biases)
        return PackedTensor((packed, scales, biases), self.group, self.dtype)


def packed(tensor: mx.array, group: int) -> PackedTensor:
    """Return [1, kv_heads, tokens, head_dim] in 8 bits, evaluated."""
    tokens = tensor.shape[TOKEN_AXIS]
    step = max(1, _AT_ONCE_BYTES // max(1, tensor.nbytes // max(1, tokens)))
    pieces: list[tuple[mx.array, ...]] = []
    for first in range(0, tokens, step):
        exact = tensor[:, :, first : first + step].astype(mx.float32)
        pieces.append(tuple(mx.quantize(exact, group_size=group, bits=BITS)))
        mx.eval(pieces[-1])
    values, scales, biases = (
        mx.concatenate(list(part), axis=TOKEN_AXIS) for part in zip(*pieces, strict=True)
    )
    mx.eval(values, scales, biases)
    return PackedTensor((values, scales, biases), group, tensor.dtype)


class Packing:
    """The layers of a model that can be packed.

    Args:
        storage: Whether contexts are packed at all.
    """

    def __init__(self, spec: ModelCacheSpec, storage: Storage) -> None:
        groups = dict(quantised_groups(spec)) if storage is Storage.INT8 else {}
        #: Group sizes of keys and values, by full-attention layer.
        self.groups: Mapping[int, tuple[int, int]] = {
            index: (groups[key_name(index)], groups[value_name(index)])
            for index, layer in enumerate(spec.layers)
            if layer.kind is LayerKind.FULL
            and {key_name(index), value_name(index)} <= groups.keys()
            and spec.dtype in FLOATS
        }

    def __bool__(self) -> bool:
        """Whether any layer can be packed."""
        return bool(self.groups)

    def kv_dtype(self, exact: str) -> str:
        """Return the element format in the block fingerprint."""
        return f"{exact}:{_PACKED_FORM}" if self else exact
