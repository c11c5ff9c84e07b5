"""Events of a model, on its stream ``model-…``."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import (
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded:
    """A worker loaded a model; the fields are those of ``ModelCard`` and how long it took."""

    worker: WorkerId
    model: str
    fingerprint: str
    context_length: int
    description: str
    created_at: str
    load_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoadFailed:
    """A worker could not load a model."""

    worker: WorkerId
    model: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUnloaded:
    """A worker unloaded a model."""

    worker: WorkerId
    model: str


ModelEvent = ModelLoaded | ModelLoadFailed | ModelUnloaded
