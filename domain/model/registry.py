"""The registered models, and the rule by which the name in a request finds one.

A name, an alias or the source of a registered model binds the request to that model. Other names
that match a pattern, and requests without a name, follow whichever model is loaded. All other names
are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from domain.errors import InvalidRequest
from domain.not_found import ModelNotFound
from domain.values import SamplingWish

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be loaded.

    Attributes:
        name: What clients and commands call it.
        source: A directory, a hub id, or ``semantic-demo``; empty if only another machine has it.
        aliases: Further names of it.
        context_length: Longest sequence in tokens, where it is lower than the model's own.
        sampling: Defaults that replace those of the model.
        revision: Pinned revision of a hub repository.
        kind: What it computes.
        pooling: Of an embedding model, where its files name none.
    """

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    sampling: SamplingWish = field(default_factory=SamplingWish)
    revision: str | None = None
    kind: ModelKind = ModelKind.CHAT
    pooling: Pooling | None = None


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
            self._names.setdefault(entry.source, entry)
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
            name: The name in the request.
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
        raise ModelNotFound(name, known=self._of_kind(kind))

    def _of_kind(self, kind: ModelKind) -> tuple[str, ...]:
        return tuple(entry.name for entry in self._entries.values() if entry.kind is kind)


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
