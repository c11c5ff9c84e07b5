"""The memory of a row as the target of reads: blocks go from the disk into it without a copy.

Reading threads fill slots beyond the row's tokens, which nothing reads before they are counted as
tokens. Each view shares the memory of its buffer. As long as a view exists, MLX writes to a copy of
the buffer and not into it, so a thread that writes late cannot change what the row computes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import BinaryIO, cast

import mlx.core as mx

from ops.blockstore.blocks import BlockTarget, TensorEntry
from worker.engine.mlx.kv.codec import DTYPE_NAMES, layers_of

_LENGTH_BYTES = 8
_SPACES = 8


class _Buffer:
    """A buffer of one layer, [1, heads, slots, dim], as bytes."""

    def __init__(self, buffer: mx.array) -> None:
        _, self._heads, self.slots, dim = buffer.shape
        self._slot_bytes = dim * buffer.itemsize
        #: Shape of some tokens of the buffer, without their number, and the type of an element.
        self.kind = self._heads, dim, DTYPE_NAMES[buffer.dtype]
        # The buffer protocol has no bfloat16, so elements are exported as uint8.
        # A view with an axis of length 0 cannot be cast.
        elements = buffer.view(mx.uint8) if buffer.size else bytearray()
        self._bytes = memoryview(elements).cast("B")  # type: ignore[arg-type]  # the stubs leave it out

    def parts(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the memory of some slots of each head."""
        for head in range(self._heads):
            first = head * self.slots
            yield self._bytes[
                (first + start) * self._slot_bytes : (first + stop) * self._slot_bytes
            ]


def shares_memory() -> bool:
    """Return whether threads of the processor can write to arrays of the default device."""
    return bool(mx.default_device() == mx.cpu or mx.metal.is_available())


class RowTarget:
    """The slots of a row from one token on, for consecutive blocks.

    Args:
        buffers: Those of the full-attention layers, by the names of their tensors.
        start: The slot of the first token of the first block.
    """

    def __init__(self, buffers: Mapping[str, mx.array], start: int, block_tokens: int) -> None:
        self._start = start
        self._block_tokens = block_tokens
        self._buffers = {name: _Buffer(one) for name, one in buffers.items()}

    def __call__(self, index: int) -> BlockTarget:
        """Return the memory for the block of that index."""
        return partial(self._parts, self._start + index * self._block_tokens)

    def _parts(self, start: int, tensors: Sequence[TensorEntry]) -> Iterator[memoryview] | None:
        order: list[_Buffer] = []
        seen: set[str] = set()
        for tensor in tensors:
            names = _names(tensor)
            if names is None or not seen.isdisjoint(names):
                return None
            for name in names:
                if not self._fits(tensor, name, start):
                    return None
                order.append(self._buffers[name])
            seen.update(names)
        if seen != self._buffers.keys():
            return None
        stop = start + self._block_tokens
        return (part for buffer in order for part in buffer.parts(start, stop))

    def _fits(self, tensor: TensorEntry, name: str, start: int) -> bool:
        buffer = self._buffers.get(name)
        if buffer is None or start + self._block_tokens > buffer.slots:
            return False
        heads, dim, dtype = buffer.kind
        return (tensor.dtype, tensor.shape[1:]) == (dtype, (1, heads, self._block_tokens, dim))


def _names(tensor: TensorEntry) -> list[str] | None:
    """Return the names of the tensors that are stacked in one; see ``to_raw``."""
    ranges, _, part = tensor.name.partition(".")
    count = tensor.shape[0] if tensor.shape else 0
    try:
        layers = list(islice(layers_of(ranges), count + 1))
    except ValueError:
        return None
    return [f"{layer}.{part}" for layer in layers] if len(layers) == count else None


def untouched_arrays(
    forms: Mapping[str, tuple[tuple[int, ...], mx.Dtype]],
) -> dict[str, mx.array]:
    """Return arrays with arbitrary values, of shapes and types by name, not written to yet.

    The system gives memory to a process page by page, when it is first written. A row's buffers of
    zeros would be written twice, and the first time all at once, on the engine thread. MLX has no
    function for an array without values: ``mx.empty`` fills it with zeros. But it allocates an
    array that it loads from a file before it calls the file, and this file writes nothing.
    """
    header: dict[str, object] = {}
    end = 0
    for name, (shape, dtype) in forms.items():
        begin = end
        size_bytes = dtype.size
        for length in shape:
            size_bytes *= length
        end += size_bytes
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _SPACES)
    start = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    file = cast("BinaryIO", _Unwritten(start, len(start) + end))
    arrays = mx.load(file, format="safetensors")
    assert isinstance(arrays, dict), "safetensors have names"
    mx.eval(arrays)
    return arrays


class _Unwritten(io.RawIOBase):
    """A file that provides its first bytes and leaves the buffers for all others as they are."""

    def __init__(self, start: bytes, size_bytes: int) -> None:
        self._start = start
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        before = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}
        self._at = before[whence] + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # MLX passes one
        left = self._start[self._at : self._at + buffer.nbytes]
        buffer.cast("B")[: len(left)] = left
        self._at += buffer.nbytes
        return buffer.nbytes
