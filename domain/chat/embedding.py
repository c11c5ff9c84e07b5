"""The vectors of texts: what a request asks for, and what its job stores."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from domain.errors import PromptTooLong

#: Protocol of the jobs that compute vectors.
EMBEDDINGS_PROTOCOL: Final = "openai-embeddings"
#: Bytes of an element of a vector: a float of 32 bits, little-endian.
ELEMENT_BYTES: Final = 4
#: Most elements of a vector that a request may ask for.
DIMENSIONS_MAX: Final = 1 << 16

EmbeddingText: TypeAlias = str | tuple[int, ...]


class TextTooLong(PromptTooLong):
    """One of several texts does not fit the model's context."""

    code = PromptTooLong.code

    def __init__(self, index: int, tokens: int, maximum: int) -> None:
        super().__init__(tokens, maximum)
        self.args = (f"input {index} is too long: {tokens} tokens > {maximum} maximum",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInputs:
    """The texts of a request for vectors.

    Attributes:
        texts: Texts, or the token ids of texts; at least one, none of them empty.
        dimensions: Elements of each vector; ``None`` for all that the model computes.
    """

    texts: tuple[EmbeddingText, ...]
    dimensions: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form in the canonical request."""
        texts = [text if isinstance(text, str) else list(text) for text in self.texts]
        return {"texts": texts, "dimensions": self.dimensions}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EmbeddingInputs:
        """Return the inputs that ``to_json`` encoded."""
        texts = (text if isinstance(text, str) else tuple(text) for text in data["texts"])
        return cls(texts=tuple(texts), dimensions=data["dimensions"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The vectors of a request, in the order of its texts.

    Attributes:
        dimensions: Elements of each vector, at least 1.
        data: The elements of all vectors, one vector after the other.
    """

    dimensions: int
    data: bytes

    def __post_init__(self) -> None:
        assert self.dimensions > 0, "a vector has elements"
        assert len(self.data) % self.vector_bytes == 0, "every vector is whole"

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector."""
        return self.dimensions * ELEMENT_BYTES

    def each(self) -> Iterable[bytes]:
        """Return the bytes of each vector, in order."""
        size = self.vector_bytes
        return (self.data[at : at + size] for at in range(0, len(self.data), size))

    def to_json(self) -> dict[str, Any]:
        """Return the form in the stored answer; the elements are encoded in base64."""
        return {"dimensions": self.dimensions, "data": base64.b64encode(self.data).decode()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Vectors:
        """Return the vectors that ``to_json`` encoded."""
        return cls(dimensions=data["dimensions"], data=base64.b64decode(data["data"]))
