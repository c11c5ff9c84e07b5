"""Networks of embedding models, and the vectors of one request in slices of bounded length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from domain.chat.embedding import ELEMENT_BYTES, Vectors
from domain.errors import EngineFailure, ModelUnusable
from domain.model.registry import Pooling
from ops.models.hub_cache import context_length_of
from worker.engine.mlx.memory.at_load import parameter_bytes
from worker.engine.mlx.model.sizing import UnsupportedConfig, size_model

#: Longest text where the configuration sets no ``context``, in tokens; the vendor's own limit.
TEXT_TOKENS_MAX: Final = 8192
#: Most tokens that one slice computes.
SLICE_TOKENS_MAX: Final = 2048
#: Weights that are read from the disk in one slice, in bytes.
LOADED_BYTES: Final = 32 << 20
#: Modules of sentence-transformers whose effect is computed here.
_MODULES: Final = frozenset({"Transformer", "Pooling", "Normalize", "Dropout"})
#: Members of a configuration whose value means that a token sees those after it.
_BIDIRECTIONAL: Final[Mapping[str, object]] = {
    "use_bidirectional_attention": True,
    "is_causal": False,
}
_POOLINGS: Final = {"lasttoken": Pooling.LAST, "mean": Pooling.MEAN, "cls": Pooling.CLS}
_MARKS: Final = {
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingShape:
    """The shape of an embedding model, from its configuration.

    Attributes:
        dimensions: Elements of a whole vector.
        vocabulary: Token ids are less than this.
        text_tokens_max: Longest text, in tokens.
        memory_bytes: Weights, the caches of one text of full length, and one slice.
    """

    dimensions: int
    vocabulary: int
    text_tokens_max: int
    pooling: Pooling
    memory_bytes: int


def read_shape(
    directory: Path, *, context: int | None = None, pooling: Pooling | None = None
) -> EmbeddingShape:
    """Return the shape of the model in a directory, without its weights.

    Raises:
        ModelUnusable: This program cannot compute the vectors of the model.
    """
    config = _read_json(directory / "config.json")
    if not isinstance(config, dict):
        raise ModelUnusable(f"{directory} has no config.json")
    for name, value in _BIDIRECTIONAL.items():
        if config.get(name) is value:
            raise ModelUnusable(f"{directory.name} is no decoder: its {name} is {value}")
    _require_modules(directory)
    try:
        footprint = size_model(config, piece_tokens=SLICE_TOKENS_MAX, batch=1)
    except UnsupportedConfig as error:
        raise ModelUnusable(f"{directory.name}: {error.message}") from error
    longest = min(context or TEXT_TOKENS_MAX, context_length_of(config))
    caches = footprint.spec.live_bytes(longest)
    return EmbeddingShape(
        dimensions=int(config["hidden_size"]),
        vocabulary=int(config["vocab_size"]),
        text_tokens_max=longest,
        pooling=pooling or _pooling(directory),
        memory_bytes=footprint.weights_bytes + caches + footprint.step.bytes_at(longest),
    )


def _require_modules(directory: Path) -> None:
    listed = _read_json(directory / "modules.json")
    modules = listed if isinstance(listed, list) else []
    names = {str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules}
    if foreign := names - _MODULES:
        raise ModelUnusable(
            f"{directory.name} has a module that is not supported: {', '.join(sorted(foreign))}"
        )


def _pooling(directory: Path) -> Pooling:
    config = _read_json(directory / "1_Pooling" / "config.json")
    if not isinstance(config, dict):
        return Pooling.LAST
    named = config.get("pooling_mode")
    found = {pooling for mark, pooling in _MARKS.items() if config.get(mark)}
    if isinstance(named, str) and named in _POOLINGS:
        found = {_POOLINGS[named]}
    if len(found) != 1:
        raise ModelUnusable(f"{directory.name} has a pooling that is not supported")
    return found.pop()


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


class EmbeddingNetwork:
    """A network whose hidden states become vectors. Belongs to the engine thread.

    Raises:
        ModelUnusable: The weights do not fit the configuration.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self._model, _ = mlx_lm.utils.load_model(
                directory,
                lazy=True,
                model_config={"tie_word_embeddings": True},
                get_model_classes=_headless,
            )
            self._layers = self._model.model
        except Exception as error:
            # mlx and mlx-lm raise exceptions of many types on a broken directory.
            msg = f"the model in {directory} cannot be loaded: {type(error).__name__}: {error}"
            raise ModelUnusable(msg) from error

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights, read or not."""
        return parameter_bytes(self._model)

    def load(self) -> Iterator[None]:
        """Read the weights from the disk, a part in each step."""
        arrays: list[tuple[str, Any]] = tree_flatten(self._model.parameters())  # type: ignore[assignment]
        part: list[Any] = []
        for _, array in arrays:
            part.append(array)
            if sum(one.nbytes for one in part) >= LOADED_BYTES:
                mx.eval(part)
                part = []
                yield
        mx.eval(part)

    def hidden(self, tokens: mx.array, cache: list[Any] | None) -> mx.array:
        """Return the hidden states after the final norm, (texts, tokens, dimensions).

        Args:
            tokens: Ids of shape (texts, tokens).
            cache: The caches of one text that is computed piece by piece.
        """
        return self._layers(tokens, cache=cache)  # type: ignore[no-any-return]  # mlx-lm ships no types

    def new_cache(self) -> list[Any]:
        """Return empty caches for one text."""
        return make_prompt_cache(self._model)  # type: ignore[no-any-return]  # mlx-lm ships no types


def _headless(config: dict[str, Any]) -> tuple[type, type]:
    """Return the classes of a model, which then ignores an output head among the weights."""
    model_class, args_class = mlx_lm.utils._get_classes(config)  # noqa: SLF001 - no public name

    class Headless(model_class):  # type: ignore[misc, valid-type]  # made at run time
        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            # Directories of sentence-transformers hold the layers without the name of their parent.
            named = {
                name if name.startswith("model.") else f"model.{name}": array
                for name, array in weights.items()
                if not name.startswith("lm_head.")
            }
            parent = getattr(super(), "sanitize", None)
            return named if parent is None else parent(named)

    return Headless, args_class


#: Id of the tokens that fill short texts.
_PADDING: Final = 0


@dataclass(slots=True)
class _OpenText:
    """A text of which a part is computed.

    Attributes:
        index: Its place in the request.
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
