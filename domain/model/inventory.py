"""What is known of each registered model: its files, its last load, and whether a worker has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from domain.events.event import Event
from domain.events.model import ModelLoaded, ModelLoadFailed
from domain.model.registry import ModelEntry, ModelRegistry
from domain.values import ModelCard


class ModelState(StrEnum):
    """State of a registered model.

    ``loaded``: a worker serves it. ``available``: its files are here. ``missing``: they are not.
    ``failed``: its last load failed, and its files are still those that failed.
    """

    LOADED = "loaded"
    AVAILABLE = "available"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of a model on this machine.

    Attributes:
        directory: Where they are.
        context_length: Longest sequence that the configuration allows, in tokens.
        written_at: Time of the last change of the weights.
    """

    directory: str
    size_bytes: int
    context_length: int
    written_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPast:
    """What the log holds of a model.

    Attributes:
        card: Of its last load.
        loaded_at: When that was.
        failure: Why its last load failed; ``None`` if it did not.
        failed_at: When that was.
    """

    card: ModelCard | None = None
    loaded_at: datetime | None = None
    failure: str | None = None
    failed_at: datetime | None = None

    def after(self, event: Event, at: datetime) -> ModelPast:
        """Return the past with one more event."""
        match event:
            case ModelLoaded():
                return ModelPast(card=event.card, loaded_at=at)
            case ModelLoadFailed():
                return replace(self, failure=event.message, failed_at=at)
            case _:
                return self


#: Types of the events that make a ``ModelPast``.
PAST_EVENTS: Final = (ModelLoaded.__name__, ModelLoadFailed.__name__)

InspectFiles = Callable[[ModelEntry], ModelFiles | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A registered model as it is now.

    Attributes:
        entry: Its registration.
        state: What can be done with it.
        files: Its files; ``None`` if they are not here.
        past: What the log holds of it.
        card: Of the worker that serves it, else of its last load.
    """

    entry: ModelEntry
    state: ModelState
    files: ModelFiles | None = None
    past: ModelPast = field(default_factory=ModelPast)
    card: ModelCard | None = None

    @property
    def context_length(self) -> int | None:
        """Longest sequence in tokens, as far as it is known."""
        if self.state is ModelState.LOADED and self.card is not None:
            return self.card.context_length
        own = None if self.files is None else self.files.context_length
        known = (own, self.entry.context_length)
        return min((tokens for tokens in known if tokens is not None), default=None)

    @property
    def digest(self) -> str | None:
        """Fingerprint of weights, tokenizer and configuration at the last load."""
        return None if self.card is None else self.card.fingerprint

    @property
    def failure(self) -> str | None:
        """Why the model could not be loaded."""
        return self.past.failure if self.state is ModelState.FAILED else None


def take_stock(
    registry: ModelRegistry,
    *,
    inspect: InspectFiles,
    pasts: Mapping[str, ModelPast],
    serving: Iterable[ModelCard],
) -> tuple[ModelStatus, ...]:
    """Return the models: those that a worker serves first, else the one that was loaded last.

    Args:
        registry: The registered models.
        inspect: Returns the files of a model, if they are here.
        pasts: What the log holds, by the name of the model.
        serving: Models of live workers; those that are not registered are listed too.
    """
    cards = {card.id: card for card in serving}
    entries = registry.extended(cards).entries()
    found = [
        _status(entry, inspect(entry), pasts.get(entry.name, ModelPast()), cards.get(entry.name))
        for entry in entries
    ]
    return tuple(sorted(found, key=_order))


def _order(status: ModelStatus) -> tuple[bool, float]:
    loaded_at = status.past.loaded_at
    is_loaded = status.state is ModelState.LOADED
    return not is_loaded, 0.0 if loaded_at is None else -loaded_at.timestamp()


def _status(
    entry: ModelEntry, files: ModelFiles | None, past: ModelPast, card: ModelCard | None
) -> ModelStatus:
    return ModelStatus(
        entry=entry,
        state=_state(files, past, is_loaded=card is not None),
        files=files,
        past=past,
        card=card or past.card,
    )


def _state(files: ModelFiles | None, past: ModelPast, *, is_loaded: bool) -> ModelState:
    if is_loaded:
        return ModelState.LOADED
    if files is None:
        return ModelState.MISSING
    if past.failed_at is not None and past.failed_at >= files.written_at:
        return ModelState.FAILED
    return ModelState.AVAILABLE
