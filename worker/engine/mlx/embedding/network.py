"""Networks of embedding models: decoders of mlx-lm without their output head.

The files of sentence-transformers describe the model: ``modules.json`` lists the modules, and
``1_Pooling/config.json`` the pooling (https://sbert.net/docs/package_reference/
sentence_transformer/models.html). Decoder embedders such as Qwen3-Embedding take the hidden state
after the final norm of the last token, which their tokenizer appends, and normalise it
(https://huggingface.co/Qwen/Qwen3-Embedding-0.6B, function ``last_token_pool``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from domain.errors import ModelUnusable
from domain.model.registry import Pooling
from ops.models.files import context_length_of
from worker.engine.mlx.memory.report import parameter_bytes
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
        pooling: Which hidden states are the vector of a text.
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

    Args:
        directory: Its files.
        context: Longest text in tokens, where it is set.
        pooling: The pooling, where it is set.

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

    Args:
        directory: The files of the model.

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
        """Return the hidden states after the final norm.

        Args:
            tokens: Ids of shape (texts, tokens).
            cache: The caches of one text that is computed piece by piece.

        Returns:
            Shape (texts, tokens, dimensions).
        """
        return self._layers(tokens, cache=cache)  # type: ignore[no-any-return]  # mlx-lm ships no types

    def new_cache(self) -> list[Any]:
        """Return empty caches for one text."""
        return make_prompt_cache(self._model)  # type: ignore[no-any-return]  # as above


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
