"""The content of a block without MLX: named tensors as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as safetensors describes it.

    Attributes:
        dtype: Name in the safetensors format: ``F32``, ``F16``, ``BF16``, ``U32``, ``U8`` …
        shape: Lengths of the axes.
        data: The elements in C order, little-endian; a tensor to be written may also have
            consecutive parts, which saves joining them.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | tuple[memoryview, ...]

    @property
    def parts(self) -> tuple[memoryview, ...]:
        """The data as bytes, in one part or more."""
        data = self.data if isinstance(self.data, tuple) else (memoryview(self.data),)
        return tuple(part.cast("B") for part in data if part.nbytes)

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes."""
        return sum(part.nbytes for part in self.parts)

    def joined(self) -> memoryview:
        """Return the data in one part."""
        parts = self.parts
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


#: The tensors of one block by name.
BlockPayload = Mapping[str, RawTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a header; offsets count from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class BlockTarget(Protocol):
    """Memory of the caller that the tensors of a block are read into."""

    def __call__(self, tensors: Sequence[TensorEntry]) -> Iterable[memoryview] | None:
        """Return where the bytes of some tensors belong.

        Called on the reading thread, before the bytes are read and verified: what a rejected block
        has left in this memory must not be used.

        Args:
            tensors: The tensors of the file, without the ids of the tokens, in their order.

        Returns:
            Writable parts, which together have the length of the tensors; ``None`` for a block
            that does not fit, which is returned as any other.
        """
        ...
