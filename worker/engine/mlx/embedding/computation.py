"""The vectors of one request, computed in slices of bounded length.

A long text is read piece by piece into caches of its own. Short texts are computed together, padded
on the right: in a decoder no token sees those after it, so padding changes no vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx

from domain.chat.embedding import ELEMENT_BYTES, Vectors
from domain.errors import EngineFailure
from domain.model.registry import Pooling
from worker.engine.mlx.embedding.network import SLICE_TOKENS_MAX, EmbeddingNetwork

#: Id of the tokens that fill short texts.
_PADDING: Final = 0


@dataclass(slots=True)
class _OpenText:
    """A text of which a part is computed.

    Attributes:
        index: Its place in the request.
        done: Number of computed tokens.
        cache: Its caches.
        pooled: The first or the last hidden state so far, or the sum of all.
    """

    index: int
    cache: list[Any]
    done: int = 0
    pooled: mx.array | None = None


@dataclass(slots=True)
class VectorComputation:
    """Computes the vectors of texts. Belongs to the engine thread.

    Args:
        network: Its weights are loaded.
        texts: Token ids of each text.
        pooling: Which hidden states are the vector of a text.
        dimensions: Elements of each vector; the first ones are kept.
    """

    network: EmbeddingNetwork
    texts: Sequence[Sequence[int]]
    pooling: Pooling
    dimensions: int
    _vectors: dict[int, bytes] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    _open: _OpenText | None = None

    def __post_init__(self) -> None:
        # Popped from the end: short texts first, so that those of one slice are of like length.
        self._waiting = sorted(range(len(self.texts)), key=self._length, reverse=True)

    @property
    def is_done(self) -> bool:
        """Whether every vector is computed."""
        return len(self._vectors) == len(self.texts)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of the text that is computed piece by piece."""
        return 0 if self._open is None else sum(layer.nbytes for layer in self._open.cache)

    def vectors(self) -> Vectors:
        """Return the vectors, once all are computed."""
        assert self.is_done, "vectors are missing"
        data = b"".join(self._vectors[index] for index in range(len(self.texts)))
        return Vectors(dimensions=self.dimensions, data=data)

    def advance(self, tokens_max: int) -> int:
        """Compute the next slice, of at most ``tokens_max`` tokens with padding; at least one.

        Returns:
            The number of computed tokens.

        Raises:
            EngineFailure: A vector has elements that are no numbers.
        """
        tokens_max = max(1, min(tokens_max, SLICE_TOKENS_MAX))
        if self._open is None and (together := self._take_short(tokens_max)):
            return self._compute_together(together)
        if self._open is None:
            self._open = _OpenText(self._waiting.pop(), self.network.new_cache())
        return self._compute_piece(self._open, tokens_max)

    def _length(self, index: int) -> int:
        return len(self.texts[index])

    def _take_short(self, tokens_max: int) -> list[int]:
        """Return waiting texts that fit into one slice together."""
        taken: list[int] = []
        while self._waiting:
            longest = self._length(self._waiting[-1])
            if (len(taken) + 1) * longest > tokens_max:
                break
            taken.append(self._waiting.pop())
        return taken

    def _compute_together(self, indices: list[int]) -> int:
        lengths = [self._length(index) for index in indices]
        width = max(lengths)
        rows = [
            [*self.texts[index], *[_PADDING] * (width - length)]
            for index, length in zip(indices, lengths, strict=True)
        ]
        hidden = self.network.hidden(mx.array(rows), None).astype(mx.float32)
        pooled = [
            self._pool(hidden[row, :length], None) / self._divisor(length)
            for row, length in enumerate(lengths)
        ]
        self._finish(indices, mx.stack(pooled))
        return width * len(indices)

    def _compute_piece(self, text: _OpenText, tokens_max: int) -> int:
        ids = self.texts[text.index][text.done : text.done + tokens_max]
        hidden = self.network.hidden(mx.array([list(ids)]), text.cache)[0].astype(mx.float32)
        text.pooled = self._pool(hidden, text.pooled)
        text.done += len(ids)
        mx.eval(text.pooled, [layer.state for layer in text.cache])
        if text.done == self._length(text.index):
            self._open = None
            self._finish([text.index], (text.pooled / self._divisor(text.done))[None])
        return len(ids)

    def _pool(self, hidden: mx.array, before: mx.array | None) -> mx.array:
        """Return what remains of the hidden states of a piece, after those before it."""
        match self.pooling:
            case Pooling.LAST:
                return hidden[-1]
            case Pooling.CLS:
                return hidden[0] if before is None else before
            case Pooling.MEAN:
                summed = hidden.sum(axis=0)
                return summed if before is None else before + summed

    def _divisor(self, length: int) -> int:
        return length if self.pooling is Pooling.MEAN else 1

    def _finish(self, indices: list[int], pooled: mx.array) -> None:
        kept = pooled[:, : self.dimensions]
        # A vector of zeros has no direction and stays as it is.
        norms = mx.maximum(mx.linalg.norm(kept, axis=-1, keepdims=True), 1e-12)
        vectors = mx.contiguous((kept / norms).astype(mx.float32))
        finite = mx.isfinite(vectors).all(axis=-1)
        mx.eval(vectors, finite)
        if not all(finite.tolist()):  # type: ignore[arg-type]  # of one axis
            raise EngineFailure("the model computed a vector with elements that are no numbers")
        data = bytes(memoryview(vectors))  # type: ignore[arg-type]  # mlx arrays are buffers
        size = self.dimensions * ELEMENT_BYTES
        for row, index in enumerate(indices):
            self._vectors[index] = data[row * size : (row + 1) * size]
