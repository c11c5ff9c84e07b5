"""Arrays whose memory nothing has written yet.

The system gives memory to a process page by page, when it is first written. A row's buffers of
zeros would be written twice, and the first time all at once, on the engine thread. MLX has no
function for an array without values: ``mx.empty`` fills it with zeros. But it allocates an array
that it loads from a file before it calls the file, and this file writes nothing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import BinaryIO, cast

import mlx.core as mx

from worker.engine.mlx.kv.raw import DTYPE_NAMES

_LENGTH_BYTES = 8
_SPACES = 8


def untouched_arrays(shapes: Mapping[str, tuple[int, ...]], dtype: mx.Dtype) -> dict[str, mx.array]:
    """Return arrays with arbitrary values, by name.

    Args:
        shapes: The shape of each.
        dtype: Type of the elements.
    """
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
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
