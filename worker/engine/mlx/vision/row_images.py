"""What a network reads of the images of its rows: vectors in place of ids, and their positions.

A pass gets token ids as without images. While it runs, the embedding of the network puts the
vectors of images where their ids stand. Families that number the tokens of an image by row and
column (M-RoPE, https://arxiv.org/abs/2409.12191) get the positions of the pass in place of the
number of tokens before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from domain.chat.images import IMAGE_ID_MIN, ChatImage, PromptImage
from worker.engine.mlx.untyped import Module, Network

#: Positions by time, row and column, [3, tokens].
Positions: TypeAlias = npt.NDArray[np.int32]

_EMBEDDING: Final = "embed_tokens"
_ROPE: Final = "rope"
_AXES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSections:
    """How many frequencies turn by the row of a token, and how many by its column.

    Attributes:
        is_interleaved: Whether the axes take turns, from the highest frequency on; else each has a
            section of its own.
    """

    rows: int
    columns: int
    is_interleaved: bool


class RowImages:
    """The images of one row.

    Args:
        tokens: Length of the whole prompt.
    """

    def __init__(self, images: Sequence[PromptImage], tokens: int, inputs: ImageInputs) -> None:
        self._images = images
        self.inputs = inputs
        self._positions: Positions | None = None
        self._shift = 0
        if inputs.has_axes:
            self._positions, self._shift = _positions(images, tokens)

    def vectors(self, start: int, count: int) -> tuple[list[int], list[mx.array]]:
        """Return which of ``count`` tokens belong to images, and their vectors.

        Args:
            start: Tokens of the row before them.
        """
        places: list[int] = []
        found: list[mx.array] = []
        for image in self._images:
            first, last = bisect_left(image.at, start), bisect_left(image.at, start + count)
            if first < last:
                places += [at - start for at in image.at[first:last]]
                found.append(self.inputs.vectors(image.image)[first:last])
        return places, found

    def positions(self, start: int, count: int) -> Positions:
        """Return the positions of ``count`` tokens after ``start`` others."""
        if self._positions is None:
            return _counted(start, count)
        known = self._positions[:, start : start + count]
        more = count - known.shape[1]
        after = _counted(start + known.shape[1] + self._shift, more)
        return np.concatenate([known, after], axis=1) if more else known


def _counted(start: int, count: int) -> Positions:
    """Return the positions of tokens that follow one another."""
    return np.broadcast_to(np.arange(start, start + count, dtype=np.int32), (_AXES, count))


def _positions(images: Sequence[PromptImage], tokens: int) -> tuple[Positions, int]:
    """Return the positions of a prompt, and by how much those of later tokens are shifted.

    Text goes on after the largest position of an image.
    """
    parts: list[Positions] = []
    at = position = 0
    for image in images:
        assert image.grid is not None, "the family numbers rows and columns"
        rows, columns = image.grid
        first, count = image.at[0], rows * columns
        assert count == len(image.at), "an image is one run of tokens"
        parts.append(_counted(position, first - at))
        position += first - at
        grid = np.indices((1, rows, columns), dtype=np.int32).reshape(_AXES, count)
        parts.append(grid + np.int32(position))
        position += max(rows, columns)
        at = first + count
    parts.append(_counted(position, tokens - at))
    return np.concatenate(parts, axis=1), position - at


#: New tokens of a row in a pass: its images, the tokens before, and their number.
Piece: TypeAlias = tuple[RowImages | None, int, int]


@dataclass(slots=True)
class _Pass:
    """What the network reads besides ids in the present pass.

    Attributes:
        places: Tokens of images among all tokens of the pass.
        vectors: Their vectors, [places, dim].
        positions: Of all tokens; ``None`` where the number of tokens before suffices.
        turns: Cosines and sines of the positions, once a layer has asked for them.
    """

    places: list[int]
    vectors: mx.array | None
    positions: Positions | None
    turns: tuple[mx.array, mx.array] | None = None


class ImageInputs:
    """Gives a network the images of a pass. Belongs to the thread that loaded it.

    Args:
        network: An mlx-lm model, changed in place.
        placeholder: The model's own token of images.
        sections: Of a family that numbers rows and columns.

    Attributes:
        has_axes: Whether positions depend on rows and columns.
    """

    def __init__(
        self,
        network: Network,
        vectors: Callable[[ChatImage], mx.array],
        placeholder: int,
        sections: AxisSections | None = None,
    ) -> None:
        self.vectors = vectors
        self.placeholder = placeholder
        self.has_axes = sections is not None
        self._pass: _Pass | None = None
        for name, module in network.named_modules():
            if name.rpartition(".")[2] == _EMBEDDING:
                self._embed_images(module)
            if sections is not None and name.rpartition(".")[2] == _ROPE:
                self._turn_by_axes(module, sections)

    @contextmanager
    def of(self, pieces: Sequence[Piece]) -> Generator[None]:
        """Give the network the images of the pieces that a pass computes, in order."""
        places: list[int] = []
        vectors: list[mx.array] = []
        begin = 0
        for images, start, count in pieces:
            if images is not None:
                here, found = images.vectors(start, count)
                places += [begin + place for place in here]
                vectors += found
            begin += count
        positions = None
        if self.has_axes:
            each = [
                _counted(start, count) if images is None else images.positions(start, count)
                for images, start, count in pieces
            ]
            positions = np.concatenate(each, axis=1)
        joined = mx.concatenate(vectors) if vectors else None
        self._pass = _Pass(places, joined, positions)
        try:
            yield
        finally:
            self._pass = None

    def _embed_images(self, module: Module) -> None:
        """Let an embedding put vectors where the ids of images stand; its class is replaced."""
        plain = type(module)

        def embed(this: Module, ids: mx.array) -> mx.array:
            now = self._pass
            if now is None or now.vectors is None:
                found: mx.array = plain.__call__(this, ids)
                return found
            hidden: mx.array = plain.__call__(this, mx.where(ids >= IMAGE_ID_MIN, 0, ids))
            flat = hidden.reshape(-1, hidden.shape[-1])
            flat[mx.array(now.places)] = now.vectors.astype(flat.dtype)
            return flat.reshape(hidden.shape)

        module.__class__ = type(plain.__name__, (plain,), {"__call__": embed})

    def _turn_by_axes(self, module: Module, sections: AxisSections) -> None:
        """Let rotary positions have three axes in passes with images; their class is replaced."""
        plain, dims = type(module), module.dims
        axes = _axes_of(sections, dims)
        frequencies = module.base ** (-np.arange(0, dims, 2, dtype=np.float32) / dims)

        def turn(this: Module, x: mx.array, offset: Any = 0) -> mx.array:  # noqa: ANN401 - mlx-lm ships no types
            now = self._pass
            if now is None or now.positions is None:
                turned: mx.array = plain.__call__(this, x, offset=offset)
                return turned
            if now.turns is None:
                angles = mx.array(now.positions[axes].T * frequencies)
                angles = mx.concatenate([angles, angles], axis=-1)
                now.turns = mx.cos(angles), mx.sin(angles)
            return _turned(x, *now.turns)

        module.__class__ = type(plain.__name__, (plain,), {"__call__": turn})


def _turned(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """Return queries or keys turned by the positions of their tokens.

    Args:
        x: [rows, heads, tokens, dim]; a pass has its tokens in one row, or one in each.
        cosines: [tokens, turned dim].
    """
    dims = cosines.shape[-1]
    shape = (1, 1, -1, dims) if x.shape[0] == 1 else (-1, 1, 1, dims)
    plain, rest = x[..., :dims].astype(mx.float32), x[..., dims:]
    half = dims // 2
    crossed = mx.concatenate([-plain[..., half:], plain[..., :half]], axis=-1)
    turned = (plain * cosines.reshape(shape) + crossed * sines.reshape(shape)).astype(x.dtype)
    return mx.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def images_in_pass(pieces: Sequence[Piece]) -> AbstractContextManager[None]:
    """Give the network the images of a pass, whose pieces are in order."""
    seeing = next((images for images, _, _ in pieces if images is not None), None)
    return nullcontext() if seeing is None else seeing.inputs.of(pieces)


def _axes_of(sections: AxisSections, dims: int) -> npt.NDArray[np.intp]:
    """Return the axis of each frequency: 0 time, 1 row, 2 column."""
    rows, columns = sections.rows, sections.columns
    axes = np.zeros(dims // 2, dtype=np.intp)
    if sections.is_interleaved:
        axes[1 : _AXES * rows : _AXES] = 1
        axes[2 : _AXES * columns : _AXES] = 2
    else:
        axes[-rows - columns :] = 1
        axes[-columns:] = 2
    return axes
