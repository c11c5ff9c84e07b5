"""``InferenceEngine`` of one embedding model: prepares texts, and submits them to the lane."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Final

import mlx_lm.utils

from domain.chat.embedding import EmbeddingInputs, EmbeddingText, TextTooLong, Vectors
from domain.chat.generation import NO_CLAIM, Claim, GenerationTask, Outcome, PreparedPrompt
from domain.chat.items import Failed
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest, ModelUnusable, SemanticError
from domain.kv.hashing import hash_ids
from domain.model.registry import ModelEntry
from domain.values import (
    ModelCard,
    Owner,
    PromptEncoding,
    Sampling,
    StopReason,
    Timings,
    Usage,
)
from worker.engine.mlx.embedding.lane import EmbeddingLane, VectorWork
from worker.engine.mlx.embedding.network import EmbeddingShape, read_shape
from worker.engine.mlx.fingerprint import fingerprint
from worker.engine.mlx.model.loader import find_model
from worker.engine.mlx.prompt.segment_tokenizer import tokens_beyond
from worker.engine.ports import ModelLoadError
from worker.engine.sequence import Handle

#: Tokens of all texts of one request, as the vendor documents it.
REQUEST_TOKENS_MAX: Final = 300_000
#: Elements of all vectors of one request: 16 MiB in the log, about 80 MB as JSON numbers.
REQUEST_ELEMENTS_MAX: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The files of a model, as they were first read."""

    directory: Path
    shape: EmbeddingShape
    tokenizer: Any
    card: ModelCard


class EmbeddingEngine:
    """Computes the vectors of the requests for one model. Safe to use from any thread."""

    def __init__(self, entry: ModelEntry, lane: EmbeddingLane, digest_cache: Path | None) -> None:
        self._entry = entry
        self._lane = lane
        self._digest_cache = digest_cache
        self._lock = Lock()
        self._files: _Files | None = None

    def card(self) -> ModelCard:
        """Return the card of the model; one without a fingerprint if it cannot be used."""
        try:
            return self._read().card
        except SemanticError:
            return ModelCard(
                id=self._entry.name,
                fingerprint="",
                context_length=0,
                description="An embedding model that cannot be used.",
                created_at="",
            )

    def prepare(
        self,
        request: ChatRequest,
        encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
        cache_owner: Owner | None = None,
        claim: Claim = NO_CLAIM,
    ) -> PreparedPrompt:
        """Tokenise the texts of a request; the tokenizer adds its own end of text.

        Raises:
            InvalidRequest: A text is empty or too long, an id or the dimensions do not exist.
            ModelUnusable: The model cannot be used.
        """
        del cache_owner, claim  # no blocks are shared, and a text is tokenised at once
        inputs = request.embedding
        if inputs is None:
            raise InvalidRequest(f"{self._entry.name} generates no text")
        files = self._read()
        dimensions = self._dimensions(inputs, files.shape)
        texts: list[tuple[int, ...]] = []
        total = 0
        for index, text in enumerate(inputs.texts):
            texts.append(_token_ids(text, index, files))
            total += len(texts[-1])
            if total > REQUEST_TOKENS_MAX:
                msg = f"the texts have more than {REQUEST_TOKENS_MAX} tokens together; send fewer"
                raise InvalidRequest(msg, field="input")
        return PreparedPrompt(
            tokens=tuple(token for text in texts for token in text),
            cached_tokens=0,
            cache_source="none",
            max_tokens=0,
            sampling=Sampling(temperature=0.0),
            encoding=encoding,
            lengths=tuple(map(len, texts)),
            dimensions=dimensions,
        )

    def _dimensions(self, inputs: EmbeddingInputs, shape: EmbeddingShape) -> int:
        """Return the elements of each vector, if these and their sum are allowed."""
        dimensions = inputs.dimensions or shape.dimensions
        if dimensions > shape.dimensions:
            msg = f"dimensions must be at most {shape.dimensions}, those of {self._entry.name}"
            raise InvalidRequest(msg, field="dimensions")
        if len(inputs.texts) * dimensions > REQUEST_ELEMENTS_MAX:
            most = REQUEST_ELEMENTS_MAX // dimensions
            msg = f"a request has at most {most} texts with vectors of {dimensions} elements"
            raise InvalidRequest(msg, field="input")
        return dimensions

    def submit(self, task: GenerationTask) -> GenerationHandle:
        """Hand the texts of a prepared request to the lane."""
        submitted_at, files, prompt = time.monotonic(), self._read(), task.prompt
        borders = accumulate(prompt.lengths, initial=0)
        work = VectorWork(
            directory=files.directory,
            pooling=files.shape.pooling,
            texts=[prompt.tokens[begin:end] for begin, end in pairwise(borders)],
            dimensions=prompt.dimensions,
            memory_bytes=files.shape.memory_bytes,
            on_end=lambda end: handle.resolve(_outcome(task, end, submitted_at, work.began_at)),
        )

        def cancel() -> None:
            work.is_cancelled = True
            self._lane.wake()

        handle = Handle(cancel, lambda: None)
        self._lane.submit(work)
        return handle

    def _read(self) -> _Files:
        """Return the files, read once they are there.

        Raises:
            ModelUnusable: They are missing, or not supported.
        """
        with self._lock:
            if self._files is None:
                self._files = _read_files(self._entry, self._digest_cache)
            return self._files


def shape_of(entry: ModelEntry) -> tuple[Path, EmbeddingShape]:
    """Return the directory and the shape of a registered model.

    Raises:
        ModelUnusable: Its files are missing, or not supported.
    """
    try:
        directory = find_model(entry.source, entry.revision, downloads=False)
    except ModelLoadError as error:
        raise ModelUnusable(f"model {entry.name}: {error.message}") from error
    return directory, read_shape(directory, context=entry.context_length, pooling=entry.pooling)


def _read_files(entry: ModelEntry, digest_cache: Path | None) -> _Files:
    directory, shape = shape_of(entry)
    try:
        tokenizer = mlx_lm.utils.load_tokenizer(directory, {"trust_remote_code": False})
    except Exception as error:
        # transformers raises exceptions of many types on a broken directory.
        msg = f"the tokenizer of {entry.name} cannot be loaded: {type(error).__name__}: {error}"
        raise ModelUnusable(msg) from error
    weights = fingerprint(directory, cache_file=digest_cache)
    whole = hashlib.sha256(f"{weights}\n{shape.pooling.value}".encode()).hexdigest()
    card = ModelCard(
        id=entry.name,
        fingerprint=f"sha256:{whole}",
        context_length=shape.text_tokens_max,
        description=f"A local embedding model with {shape.dimensions} dimensions, run by MLX.",
        created_at="",
    )
    return _Files(directory=directory, shape=shape, tokenizer=tokenizer, card=card)


def _token_ids(text: EmbeddingText, index: int, files: _Files) -> tuple[int, ...]:
    shape, tokenizer = files.shape, files.tokenizer
    if isinstance(text, str):

        def count(parts: Any) -> int:  # noqa: ANN401 - texts
            return sum(len(tokenizer.encode(part, add_special_tokens=False)) for part in parts)

        beyond = tokens_beyond(text, shape.text_tokens_max, count)
        if beyond is not None:
            raise TextTooLong(index, beyond, shape.text_tokens_max)
        ids = tuple(tokenizer.encode(text))
    else:
        ids = text
        if max(ids) >= shape.vocabulary:
            msg = f"input {index} has the token id {max(ids)}; {shape.vocabulary - 1} is the last"
            raise InvalidRequest(msg, field="input")
    if not ids:
        raise InvalidRequest(f"input {index} is empty", field="input")
    if len(ids) > shape.text_tokens_max:
        raise TextTooLong(index, len(ids), shape.text_tokens_max)
    return ids


def _outcome(
    task: GenerationTask, end: Vectors | Failed | None, submitted_at: float, began_at: float | None
) -> Outcome:
    """Return the outcome of an attempt of which the lane has reported the end."""
    now = time.monotonic()
    begin = now if began_at is None else began_at
    return Outcome(
        next_item=task.first_item,
        token_ids=(),
        text="",
        thinking="",
        stop_reason=StopReason.CANCELLED if end is None else StopReason.END_TURN,
        stop_sequence=None,
        usage=Usage(prompt_tokens=len(task.prompt.tokens)),
        token_hash=hash_ids(()),
        timings=Timings(
            admission_ms=(begin - submitted_at) * 1000, prefill_ms=(now - begin) * 1000
        ),
        failure=end if isinstance(end, Failed) else None,
        vectors=end if isinstance(end, Vectors) else None,
    )
