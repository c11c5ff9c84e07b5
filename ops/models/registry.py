"""The model registry from the settings, the demo model and the hub cache; its JSON summary."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, cast

import structlog
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from domain.model.registry import ModelEntry, ModelKind, ModelRegistry, ModelStatus
from domain.values import SamplingWish
from ops.clock import uuid7_hex
from ops.models.hub_cache import cached_ids, hub_cache_dir, is_hub_id, kind_of
from ops.settings.models import (
    DEMO_MODEL,
    named_table,
)
from ops.settings.settings import Settings, load_settings

#: Time between two looks at the files that the registry is built from, in seconds.
LOOK_S = 1.0

_log = structlog.get_logger(__name__)


def first_model(settings: Settings) -> ModelEntry:
    """Return the model that ``[model]`` means; it is loaded where no other was wanted later."""
    model, models = settings.model, settings.models
    name = named_table(model, models)
    if name is None:
        return ModelEntry(
            name=model.name or _name_of(model.id),
            source=model.id,
            context_length=model.context_length,
            kv_bits=settings.cache.kv_bits,
        )
    entry = _entry(settings, name)
    is_known = model.name in {None, name, *entry.aliases}
    return replace(
        entry,
        aliases=entry.aliases if is_known else (*entry.aliases, str(model.name)),
        context_length=model.context_length or entry.context_length,
    )


def configured_models(settings: Settings) -> tuple[ModelEntry, ...]:
    """Return the models of the settings, the first one to load in front."""
    first = first_model(settings)
    tables = settings.models.tables
    return (first, *(_entry(settings, name) for name in tables if name != first.name))


def model_registry(settings: Settings, cached: Iterable[str] = ()) -> ModelRegistry:
    """Return the registry.

    Args:
        settings: Their models come first, then the demo model, then ``cached``.
        cached: Ids of models in the hub's local cache. A model of the settings with a hub id as its
            source gets the id as an alias, and no second entry.
    """
    entries = list(configured_models(settings))
    taken = {name for entry in entries for name in (entry.name, *entry.aliases)}
    sources = tuple(entry.source for entry in entries if is_hub_id(entry.source))
    for found in (DEMO_MODEL, *sources, *cached):
        if found in taken:
            continue
        taken.add(found)
        whole = ((n, entry) for n, entry in enumerate(entries) if entry.adapter is None)
        place = next((n for n, entry in whole if entry.source == found), None)
        if place is None:
            bits = settings.cache.kv_bits
            entries.append(ModelEntry(name=found, source=found, kv_bits=bits))
        else:
            entries[place] = replace(entries[place], aliases=(*entries[place].aliases, found))
    return ModelRegistry(entries, following=settings.models.follow)


class RegistryReader:
    """The registry as the files have it, for processes that outlive a change of the files.

    Args:
        settings: The settings at the start of the process; ``[models]`` alone is read again.
        announced: Returns names of models that workers serve; those of other machines may stand in
            no file here.
        now_s: Monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        announced: Callable[[], Iterable[str]] = tuple,
        load: Callable[[], Settings] = load_settings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._announced = announced
        self._load = load
        self._now_s = now_s
        self._lock = threading.Lock()
        self._seen = _state_of_files(self._settings)
        self._own = self._registry = model_registry(settings, cached_ids())
        self._looked_s = now_s() - LOOK_S

    def current(self) -> ModelRegistry:
        """Return the registry; a change of files and workers counts within ``LOOK_S``."""
        is_due = self._now_s() - self._looked_s >= LOOK_S
        # One thread looks; the others take what is known, however long the broker needs.
        if is_due and self._lock.acquire(blocking=False):
            try:
                self._look()
                self._registry = self._own.extended(self._announced())
                self._looked_s = self._now_s()
            finally:
                self._lock.release()
        return self._registry

    def _look(self) -> None:
        seen = _state_of_files(self._settings)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            models = self._load().models
            settings = self._settings.model_copy(update={"models": models})
            self._own = model_registry(settings, cached_ids())
        except (ValueError, OSError) as error:  # ValueError: invalid settings or TOML
            _log.warning("models_not_read", why=str(error).splitlines()[0])


def _state_of_files(settings: Settings) -> tuple[tuple[str, int], ...]:
    """Return the times of change of everything that the registry is built from."""
    return tuple(_changed(path) for path in (*settings.config_files, *_cache_places()))


def _cache_places() -> Iterator[Path]:
    """Yield the directories of the hub's cache that change when a model comes or goes."""
    root = hub_cache_dir()
    yield root
    for directory in sorted(root.glob("models--*")):
        yield directory / "snapshots"
        yield directory / "refs"
        yield from sorted(directory.glob("snapshots/*"))


def _changed(path: Path) -> tuple[str, int]:
    try:
        return str(path), path.stat().st_mtime_ns
    except OSError:
        return str(path), 0


def _name_of(model_id: str) -> str:
    """Return what clients call a model without a name: its hub id, or that of its directory."""
    path = Path(model_id).expanduser()
    return path.absolute().name if path.is_dir() else model_id


def _entry(settings: Settings, name: str) -> ModelEntry:
    table = settings.models.tables[name]
    entry = ModelEntry(
        name=name,
        source=table.source,
        aliases=table.aliases,
        context_length=table.context,
        sampling=SamplingWish(**table.sampling.model_dump()),
        revision=table.revision,
        adapter=table.adapter,
        draft=table.draft,
        pooling=table.pooling,
        kv_bits=settings.cache.kv_bits if table.kv_bits is None else table.kv_bits,
    )
    return replace(entry, kind=table.kind or kind_of(entry))


def embedding_models(settings: Settings) -> tuple[ModelEntry, ...]:
    """Return the models of the settings that compute vectors, in their order."""
    tables = (_entry(settings, name) for name in settings.models.tables)
    return tuple(entry for entry in tables if entry.kind is ModelKind.EMBEDDING)


class ModelSampling(TypedDict):
    """Sampling defaults of a registration; ``null`` leaves the model's own."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    repetition_context_size: int | None
    xtc_probability: float | None
    xtc_threshold: float | None


class AbilitySummary(TypedDict):
    """How far the engine can do something with a model, and why not wholly."""

    degree: Literal["no", "partly", "yes"]
    why: str


class AbilitySummaries(TypedDict):
    """What the engine can do with a model, as found when it was last loaded."""

    prefix_cache: AbilitySummary
    batched_rows: AbilitySummary
    speculation: AbilitySummary
    int8: AbilitySummary
    structured_output: AbilitySummary


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
    adapter: str | None
    directory: str | None
    size_bytes: int | None
    context_length: int | None
    sampling: ModelSampling
    digest: str | None
    description: str | None
    failure: str | None
    abilities: AbilitySummaries | None


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
    sampling = {name: getattr(entry.sampling, name) for name in ModelSampling.__annotations__}
    return {
        "name": entry.name,
        "state": model.state.value,
        "kind": model.entry.kind.value,
        "source": entry.source,
        "aliases": list(entry.aliases),
        "revision": entry.revision,
        "adapter": entry.adapter,
        "directory": None if files is None else files.directory,
        "size_bytes": None if files is None else files.size_bytes,
        "context_length": model.context_length,
        "sampling": cast("ModelSampling", sampling),
        "digest": model.digest,
        "description": None if card is None else card.description,
        "failure": model.failure,
        "abilities": ability_summaries(model),
    }


def ability_summaries(model: ModelStatus) -> AbilitySummaries | None:
    """Return what the engine can do with a model; ``None`` where it is not known."""
    found = None if model.card is None else model.card.abilities
    return None if found is None else cast("AbilitySummaries", asdict(found))


#: Environment variable with the id of a command that names its model, as ``serve --model X`` does.
#: That is a swap to X: the worker records the id, and a later start of the worker by the same
#: command does not count as another choice. Empty where no model was named.
CHOICE_ENV = "SEMANTIC_MODEL_CHOICE"


def choice_environment(*, is_explicit: bool) -> dict[str, str]:
    """Return the variables of the parts that a command starts.

    Args:
        is_explicit: Whether the command names the model.
    """
    return {CHOICE_ENV: uuid7_hex() if is_explicit else ""}


def given_choice() -> str:
    """Return the id of the command that started this process; empty if it named no model."""
    return os.environ.get(CHOICE_ENV, "")
