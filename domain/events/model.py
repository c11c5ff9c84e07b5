"""Events of one model, on its stream ``model-…``.

Those of ``WantedModelEvent`` are on the stream ``models``; see ``domain.model.wanted_model``.
"""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import ModelAbilities, ModelCard, WorkerId


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
    abilities: ModelAbilities | None = None

    @property
    def card(self) -> ModelCard:
        """Return the description of the model."""
        return ModelCard(
            id=self.model,
            fingerprint=self.fingerprint,
            context_length=self.context_length,
            description=self.description,
            created_at=self.created_at,
            abilities=self.abilities,
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfigured:
    """A worker found another model in its settings than at its last start.

    Attributes:
        place: The data directory of the worker.
        choice: Id of the command that named the model explicitly; empty if none did.
    """

    place: str
    model: str
    choice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwapRequested:
    """The workers are to serve another model, or the same one anew.

    Attributes:
        model: Name of the wanted model.
        before: The last model that served; ``None`` if none did.
        reason: What caused the swap, as in ``domain.model.wanted_model.SwapReason``.
        drain_s: Seconds that running jobs have to finish.
        place: The data directory of the only worker that is meant; empty for all workers.
    """

    swap: str
    model: str
    before: str | None
    reason: str
    drain_s: float
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwapAdvanced:
    """A worker entered a phase of a swap, as in ``domain.model.wanted_model.SwapState``."""

    swap: str
    worker: WorkerId
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoadLost:
    """A worker died while it loaded the wanted model."""

    swap: str
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwapRolledBack:
    """The model of a swap cannot be served; the workers are to serve the one before.

    Attributes:
        model: Name of the model that cannot be served.
        before: The model that is wanted now.
        reason: Why, in one sentence.
    """

    swap: str
    model: str
    before: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServed:
    """A worker serves the wanted model; ``swap`` is the swap that ends with it."""

    worker: WorkerId
    model: str
    swap: str | None = None


WantedModelEvent = (
    ModelConfigured
    | ModelSwapRequested
    | ModelSwapAdvanced
    | ModelLoadLost
    | ModelSwapRolledBack
    | ModelServed
)
ModelEvent = ModelLoaded | ModelLoadFailed | ModelUnloaded | WantedModelEvent
