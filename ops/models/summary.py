"""Registered models as the JSON that ``GET /admin/models`` and ``semantic models ls`` return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from domain.model.inventory import ModelStatus
from domain.values import SamplingWish


class ModelSampling(TypedDict):
    """Sampling defaults of a registration; ``null`` leaves the model's own."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None


class ModelSummary(TypedDict):
    """A registered model; ``null`` where a value is not known.

    ``digest`` is the fingerprint of weights, tokenizer and configuration at the last load.
    """

    name: str
    state: Literal["loaded", "available", "missing", "failed"]
    kind: Literal["chat", "embedding"]
    source: str
    aliases: list[str]
    revision: str | None
    directory: str | None
    size_bytes: int | None
    context_length: int | None
    sampling: ModelSampling
    digest: str | None
    description: str | None
    failure: str | None


class ModelSummaries(TypedDict):
    """The registered models, the loaded ones first, and the patterns that follow those."""

    object: Literal["list"]
    data: list[ModelSummary]
    follow: list[str]


def model_summaries(models: Iterable[ModelStatus], follow: Sequence[str]) -> ModelSummaries:
    """Return the models and the patterns of names that follow the loaded one."""
    return {
        "object": "list",
        "data": [model_summary(model) for model in models],
        "follow": list(follow),
    }


def model_summary(model: ModelStatus) -> ModelSummary:
    """Return one model."""
    entry, files, card = model.entry, model.files, model.card
    return {
        "name": entry.name,
        "state": model.state.value,
        "kind": model.entry.kind.value,
        "source": entry.source,
        "aliases": list(entry.aliases),
        "revision": entry.revision,
        "directory": None if files is None else files.directory,
        "size_bytes": None if files is None else files.size_bytes,
        "context_length": model.context_length,
        "sampling": _sampling(entry.sampling),
        "digest": model.digest,
        "description": None if card is None else card.description,
        "failure": model.failure,
    }


def _sampling(wish: SamplingWish) -> ModelSampling:
    return {
        "temperature": wish.temperature,
        "top_p": wish.top_p,
        "top_k": wish.top_k,
        "min_p": wish.min_p,
    }
