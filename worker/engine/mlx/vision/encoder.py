"""Reads images for prompts, and encodes them to vectors, with the towers of mlx-vlm.

mlx-vlm is a package of an extra. It is imported for models that see, and for those only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from domain.chat.images import ChatImage, PromptImage, image_ids, image_positions
from domain.chat.request import ChatRequest, images_of
from domain.errors import InvalidRequest
from worker.engine.mlx.cpu import computes_on_cpu
from worker.engine.mlx.untyped import Network, Tokenizer
from worker.engine.mlx.vision.row_images import AxisSections

#: Upper bound for the vectors that are kept, in bytes.
VECTORS_BYTES_MAX: Final = 128 << 20
#: Texts of images that are kept, and inputs of the tower: those of images that wait for it.
_TEXTS_MAX, _INPUTS_MAX = 4096, 4
#: Pixels of the largest image that is decoded: 32 megapixels take 100 MB.
PIXELS_MAX: Final = 32 << 20

#: The only formats whose code Pillow runs.
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
#: Texts around an image, to find what a chat template writes in its place.
_BEFORE, _AFTER = "[[before an image]]", "[[after an image]]"
#: Outputs of a processor that are no input of a tower.
_TEXT_OUTPUTS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids", "pixel_values"})
#: What a tower returns beside vectors and is computed here, or has no effect in mlx-vlm either.
_KNOWN_FEATURES: Final = frozenset(
    {"inputs_embeds", "position_ids", "rope_deltas", "attention_mask_4d"}
)


@dataclass(frozen=True, slots=True)
class ReadImage:
    """An image as a prompt has it.

    Attributes:
        digest: Of its file.
        text: Text in its place, with the model's placeholder once for each run.
        runs: Lengths of the runs of its tokens.
        grid: Rows and columns of its tokens, where positions depend on them.
    """

    digest: bytes
    text: str
    runs: tuple[int, ...]
    grid: tuple[int, int] | None

    def id_runs(self) -> list[tuple[int, ...]]:
        """Return the ids of each run."""
        ids, borders = image_ids(self.digest, sum(self.runs)), accumulate(self.runs, initial=0)
        return [ids[begin:end] for begin, end in pairwise(borders)]


class ImageReader:
    """Reads the images of prompts. For many threads at once.

    Args:
        mark: What the chat template writes in the place of an image.

    Attributes:
        placeholder: The model's own token of images.
    """

    def __init__(self, processor: Any, mark: str, config: Mapping[str, Any]) -> None:  # noqa: ANN401 - mlx-vlm ships no types
        self._processor, self._mark = processor, mark
        self.placeholder: int = config.get("image_token_index") or config["image_token_id"]
        has_axes = config["model_type"] in _INTERLEAVED
        self._merged = config["vision_config"].get("spatial_merge_size", 1) if has_axes else 0
        self._lock = Lock()
        self._texts: OrderedDict[bytes, ReadImage] = OrderedDict()
        self._inputs: OrderedDict[bytes, Mapping[str, Any]] = OrderedDict()

    def read(self, image: ChatImage) -> ReadImage:
        """Return an image as a prompt has it.

        Raises:
            InvalidRequest: It cannot be decoded, or is too large.
        """
        content = image.content
        digest = hashlib.sha256(content).digest()
        with self._lock:
            found = self._texts.get(digest)
            if found is None:
                self._inputs[digest] = inputs = self._processed(content)
                found = self._texts[digest] = self._described(digest, inputs)
                if len(self._inputs) > _INPUTS_MAX:
                    self._inputs.popitem(last=False)
                if len(self._texts) > _TEXTS_MAX:
                    self._texts.popitem(last=False)
            return found

    def inputs(self, digest: bytes, content: bytes) -> Mapping[str, Any]:
        """Return what the tower gets of an image, and forget it."""
        with self._lock:
            return self._inputs.pop(digest, None) or self._processed(content)

    def prompt_images(self, request: ChatRequest, tokens: Sequence[int]) -> tuple[PromptImage, ...]:
        """Return where the images of a request stand in its prompt."""
        positions = image_positions(tokens)
        found: list[PromptImage] = []
        begin = 0
        for image in images_of(request.messages):
            read = self.read(image)
            end = begin + sum(read.runs)
            found.append(PromptImage(image, tuple(positions[begin:end]), read.grid))
            begin = end
        assert begin == len(positions), "each image of the request is in the prompt, in order"
        return tuple(found)

    def _processed(self, content: bytes) -> Mapping[str, Any]:
        """Return the text and the pixels of an image."""
        inputs: Mapping[str, Any] = self._processor(
            images=[_decoded(content)], text=[self._mark], add_special_tokens=False
        )
        return inputs

    def _described(self, digest: bytes, inputs: Mapping[str, Any]) -> ReadImage:
        collapsed: list[int] = []
        runs: list[int] = []
        for token, run in groupby(_ids_of(inputs)):
            length = len(list(run))
            is_image = token == self.placeholder
            collapsed += [token] * (1 if is_image else length)
            if is_image:
                runs.append(length)
        text: str = self._processor.tokenizer.decode(
            collapsed, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return ReadImage(digest, text, tuple(runs), self._grid(inputs))

    def _grid(self, inputs: Mapping[str, Any]) -> tuple[int, int] | None:
        if not self._merged:
            return None
        _, rows, columns = (int(one) for one in np.asarray(inputs["image_grid_thw"]).reshape(3))
        return rows // self._merged, columns // self._merged


class ImageEncoder:
    """Encodes the images that a reader has read. Belongs to the engine's thread.

    Args:
        tower: A model of mlx-vlm without weights of its language model.
    """

    def __init__(self, tower: Network, reader: ImageReader) -> None:
        self._tower = tower
        named: Any = tree_flatten(tower.parameters())
        self.tower_bytes = sum(array.nbytes for _, array in named)
        self.reader = reader
        self._vectors: OrderedDict[bytes, mx.array] = OrderedDict()

    def vectors(self, image: ChatImage) -> mx.array:
        """Return the vectors of an image, [tokens, dim], encoded or kept."""
        content = image.content
        digest = hashlib.sha256(content).digest()
        vectors = self._vectors.get(digest)
        if vectors is None:
            vectors = self._vectors[digest] = self._encoded(self.reader.inputs(digest, content))
        self._vectors.move_to_end(digest)
        while sum(one.nbytes for one in self._vectors.values()) > VECTORS_BYTES_MAX:
            self._vectors.popitem(last=False)
        return vectors

    def _encoded(self, inputs: Mapping[str, Any]) -> mx.array:
        tokens = _ids_of(inputs)
        ids = mx.array([tokens])
        others = {key: one for key, one in inputs.items() if key not in _TEXT_OUTPUTS}
        features = self._tower.get_input_embeddings(
            ids, mx.array(inputs["pixel_values"]), mask=mx.ones_like(ids), **others
        )
        extra = {key for key, one in features.to_dict().items() if one is not None}
        assert extra <= _KNOWN_FEATURES, "a family that is served has vectors only"
        places = [at for at, token in enumerate(tokens) if token == self.reader.placeholder]
        vectors: mx.array = features.inputs_embeds[0][mx.array(places)]
        mx.eval(vectors)
        return vectors


def _ids_of(inputs: Mapping[str, Any]) -> list[int]:
    return [int(token) for token in np.asarray(inputs["input_ids"]).reshape(-1)]


def _decoded(content: bytes) -> Any:  # noqa: ANN401 - Pillow is in an extra
    """Return the pixels of a file, upright and without transparency.

    Raises:
        InvalidRequest: It is damaged or too large.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415 - in an extra

    try:
        with Image.open(BytesIO(content), formats=_FORMATS) as file:
            if file.width * file.height > PIXELS_MAX:
                msg = f"an image of {file.width} by {file.height} pixels is too large"
                raise InvalidRequest(msg, field="messages")
            return ImageOps.exif_transpose(file).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow reports damaged files by these.
        msg = "an image cannot be decoded: its file is damaged"
        raise InvalidRequest(msg, field="messages") from error


class _NoText:
    """Stands for the embedding of text in a tower: only the vectors of images are used."""

    def __init__(self, dim: int, dtype: mx.Dtype) -> None:
        self._dim, self._dtype = dim, dtype

    def __call__(self, ids: mx.array) -> mx.array:
        return mx.zeros((*ids.shape, self._dim), self._dtype)


#: Sections of the families that number rows and columns: whether the axes take turns.
_INTERLEAVED: Final[Mapping[str, bool]] = {
    "qwen2_vl": False,
    "qwen2_5_vl": False,
    "qwen3_5": True,
    "qwen3_5_moe": True,
}


def sections_of(config: Mapping[str, Any]) -> AxisSections | None:
    """Return the sections of a family's positions, ``None`` where tokens are counted."""
    is_interleaved = _INTERLEAVED.get(config["model_type"])
    if is_interleaved is None:
        return None
    text = config.get("text_config") or config
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    _, rows, columns = rope["mrope_section"]
    return AxisSections(rows=rows, columns=columns, is_interleaved=is_interleaved)


def load_reader(model_dir: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> ImageReader:
    """Load what reads the images of a model.

    Raises:
        Exception: The model has no processor that mlx-vlm can load, or its template has no place
            for an image.
    """
    from mlx_vlm.utils import get_model_and_args, load_processor  # noqa: PLC0415 - in an extra

    get_model_and_args(config=dict(config))  # registers the family's processor
    # A processor of mlx-vlm would run the Python files of a model otherwise.
    processor = load_processor(model_dir, add_detokenizer=False, trust_remote_code=False)
    return ImageReader(processor, _mark_of(tokenizer), config)


def load_encoder(model_dir: Path, network: Network, reader: ImageReader) -> ImageEncoder:
    """Load the tower of a model.

    Args:
        network: The loaded language model; vectors get its width.

    Raises:
        Exception: The model has no tower that mlx-vlm can load.
    """
    from mlx_vlm.utils import load_model  # noqa: PLC0415 - in an extra

    tower = load_model(model_dir, lazy=True)
    named = network.named_modules()
    embedding = next(one for name, one in named if name.endswith("embed_tokens"))
    probe = embedding(mx.array([0]))
    _drop_language_model(tower, _NoText(probe.shape[-1], probe.dtype))
    if computes_on_cpu():
        tower.set_dtype(mx.float32)
    mx.eval(tower.parameters())
    return ImageEncoder(tower, reader)


def _drop_language_model(tower: Network, no_text: _NoText) -> None:
    """Free the weights of text; what computes positions and finds embeddings stays."""
    language = tower.language_model
    holder = language.model if "model" in language else language
    for name in list(holder):
        del holder[name]
    holder.embed_tokens = no_text
    for name in [name for name in language if name != "model"]:
        del language[name]


def _mark_of(tokenizer: Tokenizer) -> str:
    parts = [
        {"type": "text", "text": _BEFORE},
        {"type": "image"},
        {"type": "text", "text": _AFTER},
    ]
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    _, _, rest = text.partition(_BEFORE)
    mark, found, _ = rest.partition(_AFTER)
    if not mark.strip() or not found:
        raise ValueError("its chat template has no place for an image")
    return mark
