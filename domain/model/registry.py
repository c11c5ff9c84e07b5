"""Registered models: names, aliases, files and states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from domain.engine.workers import WorkerPulse, WorkerPulses, WorkerState
from domain.errors import InvalidRequest, ModelNotFound, QueueUnavailable
from domain.events.event import Event
from domain.events.model import ModelLoaded, ModelLoadFailed
from domain.log.codec import decode_recorded
from domain.log.ports import EventReader
from domain.log.record import EventFilter
from domain.ports import Clock
from domain.values import ModelCard, SamplingWish, WorkerId

#: Names that clients of hosted models send; they follow the loaded model.
FOLLOWING_PATTERNS = ("claude-*", "gpt-*", "o[0-9]*", "chatgpt-*", "codex-*")


class ModelKind(StrEnum):
    """What a model computes: ``chat`` generates tokens, ``embedding`` the vectors of texts."""

    CHAT = "chat"
    EMBEDDING = "embedding"


class Pooling(StrEnum):
    """Which hidden states are the vector of a text."""

    LAST = "last"
    MEAN = "mean"
    CLS = "cls"


#: In place of a model that drafts: the head that the weights bring, or nothing.
DRAFT_HEAD: Final = "mtp"
NO_DRAFTER: Final = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be loaded.

    Attributes:
        name: What clients and commands call it.
        source: A directory, a hub id, or ``semantic-demo``; empty if only another machine has it.
        context_length: Longest sequence in tokens, where it is lower than the model's own.
        sampling: Defaults that replace those of the model.
        revision: Pinned revision of a hub repository.
        adapter: Directory of a LoRA adapter of the source, as ``mlx_lm.lora`` writes it.
        draft: Directory or hub id of a small model that drafts tokens for this one, ``DRAFT_HEAD``
            or ``NO_DRAFTER``; ``None`` means the head where the weights have one.
        pooling: Of an embedding model, where its files name none.
        kv_bits: Bits of the keys and values of contexts; 0 for the type of the model.
    """

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    sampling: SamplingWish = field(default_factory=SamplingWish)
    revision: str | None = None
    adapter: str | None = None
    draft: str | None = None
    kind: ModelKind = ModelKind.CHAT
    pooling: Pooling | None = None
    kv_bits: int = 0

    def shares_base(self, other: ModelEntry) -> bool:
        """Return whether both are the same weights with different adapters."""
        is_same = (self.source, self.revision) == (other.source, other.revision)
        return is_same and self.adapter != other.adapter


#: Claude Code's picker of models shows only names that begin so.
_PICKED: Final = ("claude", "anthropic")


def picker_name(name: str) -> str:
    """Return the name under which Claude Code's picker shows a model.

    >>> picker_name("qwen3-8b"), picker_name("claude-local")
    ('claude-qwen3-8b', 'claude-local')
    """
    return name if name.startswith(_PICKED) else f"claude-{name}"


class ModelRegistry:
    """The registered models, in their order.

    Args:
        entries: The models. A name or an alias that occurs twice belongs to its first model.
        following: Patterns, as in ``fnmatch`` and with upper and lower case, of the names that
            follow the loaded model.
    """

    def __init__(
        self, entries: Iterable[ModelEntry], *, following: Sequence[str] = FOLLOWING_PATTERNS
    ) -> None:
        self._entries: dict[str, ModelEntry] = {}
        for entry in entries:
            self._entries.setdefault(entry.name, entry)
        self._names = dict(self._entries)
        for entry in self._entries.values():
            for alias in entry.aliases:
                self._names.setdefault(alias, entry)
        for entry in self._entries.values():
            if entry.adapter is None:
                self._names.setdefault(entry.source, entry)
            self._names.setdefault(picker_name(entry.name), entry)
        self.following = tuple(following)

    def extended(self, names: Iterable[str]) -> ModelRegistry:
        """Return the registry with the names that it lacks as models without a source."""
        lacking = [name for name in dict.fromkeys(names) if name not in self._names]
        if not lacking:
            return self
        further = (ModelEntry(name=name, source="") for name in lacking)
        return ModelRegistry((*self.entries(), *further), following=self.following)

    def entries(self) -> tuple[ModelEntry, ...]:
        """Return the models."""
        return tuple(self._entries.values())

    def get(self, name: str) -> ModelEntry | None:
        """Return the model of a name or an alias."""
        return self._names.get(name)

    def follows(self, name: str) -> bool:
        """Return whether a name, not registered, follows the loaded model."""
        return not name or any(fnmatchcase(name, pattern) for pattern in self.following)

    def bind(self, name: str, *, embeds: bool = False) -> str | None:
        """Return the name of the model to which a request with this model name belongs.

        Args:
            embeds: Whether the request wants vectors; else it wants a text.

        Returns:
            ``None`` for a request that follows the loaded model; only a generation may.

        Raises:
            InvalidRequest: The model is of the other kind.
            ModelNotFound: The name is unknown; the message lists the names that exist.
        """
        kind = ModelKind.EMBEDDING if embeds else ModelKind.CHAT
        entry = self._names.get(name)
        if entry is not None:
            require_kind(entry, kind)
            return entry.name
        if kind is ModelKind.CHAT and self.follows(name):
            return None
        known = tuple(one.name for one in self._entries.values() if one.kind is kind)
        raise ModelNotFound(name, known=known)


def require_kind(entry: ModelEntry, kind: ModelKind) -> None:
    """Refuse a model of another kind.

    Raises:
        InvalidRequest: The message names the model and what it computes.
    """
    if entry.kind is kind:
        return
    if kind is ModelKind.CHAT:
        msg = f"model {entry.name} generates no text: it computes vectors, at /v1/embeddings"
    else:
        msg = f'model {entry.name} computes no vectors; register one with kind = "embedding"'
    raise InvalidRequest(msg, field="model")


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
        context_length: Longest sequence that the configuration allows, in tokens.
        written_at: Time of the last change of the weights.
        family: The architecture that the configuration names, "" if it names none.
        sees: Whether its images are read.
    """

    directory: str
    size_bytes: int
    context_length: int
    written_at: datetime
    family: str = ""
    sees: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPast:
    """What the log holds of a model.

    Attributes:
        card: Of its last load.
        failure: Why its last load failed; ``None`` if it did not.
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

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

InspectFiles = Callable[[ModelEntry], ModelFiles | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A registered model as it is now.

    Attributes:
        files: Its files; ``None`` if they are not here.
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
    def written_at(self) -> datetime:
        """When the weights were written, in whole seconds; the epoch if it is not known."""
        written = _EPOCH if self.files is None else self.files.written_at
        if self.card is not None:
            written = _instant(self.card.created_at)
        return written.replace(microsecond=0)

    @property
    def failure(self) -> str | None:
        """Why the model could not be loaded."""
        return self.past.failure if self.state is ModelState.FAILED else None


def _instant(text: str) -> datetime:
    """Return an instant in UTC, the epoch if it is not valid."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return _EPOCH
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def take_stock(
    registry: ModelRegistry,
    *,
    inspect: InspectFiles,
    pasts: Mapping[str, ModelPast],
    serving: Iterable[ModelCard],
) -> tuple[ModelStatus, ...]:
    """Return the models: those that a worker serves first, else the one that was loaded last.

    Args:
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


#: Events that one read of the log returns.
_PAGE_EVENTS = 500
_PAST = EventFilter(types=PAST_EVENTS)
#: Time in which every live worker renews its heartbeat after an outage of the broker, in seconds.
RENEWAL_S: Final = 3.0
#: States of a worker whose pulse may name a model that it has not loaded.
_WITHOUT_MODEL = frozenset({WorkerState.LOADING, WorkerState.UNLOADED})


class ServingModels:
    """The models that live workers have loaded; any thread may ask.

    A worker that was seen stays while the broker is away, and ``RENEWAL_S`` longer: it works on,
    and its heartbeat may have expired or got lost meanwhile.
    """

    def __init__(self, pulses: WorkerPulses, clock: Clock) -> None:
        self._pulses = pulses
        self._clock = clock
        # Values, each replaced as a whole, so that threads need no lock.
        self._seen: Mapping[WorkerId, WorkerPulse] = {}
        self._renewed_by_s = -math.inf

    def cards(self) -> list[ModelCard]:
        """Return the loaded models by the name of their worker."""
        now_s = self._clock.monotonic()
        try:
            alive = {pulse.worker: pulse for pulse in self._pulses.alive()}
        except QueueUnavailable:
            self._renewed_by_s = now_s + RENEWAL_S
        else:
            self._seen = alive if now_s >= self._renewed_by_s else {**self._seen, **alive}
        seen = self._seen
        return [
            pulse.model
            for pulse in (seen[worker] for worker in sorted(seen))
            if pulse.model is not None and pulse.state not in _WITHOUT_MODEL
        ]


@dataclass(slots=True, eq=False, kw_only=True)
class ModelStock:
    """The registered models; every method blocks.

    Attributes:
        log: The event log; read once, then from the last event on. ``None`` where there is none.
        serving: The models of the workers; ``None`` where no service runs.
    """

    log: EventReader | None
    serving: ServingModels | None
    registry: Callable[[], ModelRegistry]
    inspect: InspectFiles
    # One value, replaced as a whole, so that threads need no lock.
    _known: tuple[int, Mapping[str, ModelPast]] = field(default=(0, {}), init=False)

    def all(self) -> tuple[ModelStatus, ...]:
        """Return every model, those that a worker serves first."""
        serving = [] if self.serving is None else self.serving.cards()
        return take_stock(
            self.registry(), inspect=self.inspect, pasts=self._pasts(), serving=serving
        )

    def _pasts(self) -> Mapping[str, ModelPast]:
        position, pasts = self._known
        while self.log is not None:
            page = self.log.select(_PAST, after=position, limit=_PAGE_EVENTS)
            for recorded in page:
                event = decode_recorded(recorded)
                name, at = str(recorded.data["model"]), datetime.fromisoformat(recorded.recorded_at)
                pasts = {**pasts, name: pasts.get(name, ModelPast()).after(event, at)}
                position = recorded.position
            self._known = position, pasts
            if len(page) < _PAGE_EVENTS:
                break
        return pasts
