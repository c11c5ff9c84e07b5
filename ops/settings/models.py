"""Settings of models: the one that is loaded first, and the table of those that are registered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from domain.kv.spec import PACKED_BITS
from domain.model.registry import FOLLOWING_PATTERNS, ModelKind, Pooling

#: The model that ships with the package, answers offline and needs no download.
DEMO_MODEL = "semantic-demo"
#: What a registered model may be called; hub ids fit.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,199}$"

ModelName = Annotated[str, Field(pattern=NAME_PATTERN)]


class SettingGroup(BaseModel):
    """A table of the configuration: frozen and strict."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(SettingGroup):
    """The model that is loaded first."""

    id: str = DEMO_MODEL
    """The model is a registered name, a directory, a hub id, or the demo."""
    name: str | None = None
    """Clients call the model by this name; by default it comes from the id."""
    context_length: int | None = Field(default=None, ge=16)
    """This many tokens lower the model's own limit."""
    idle_ttl_s: float = Field(default=0.0, ge=0)
    """The model leaves the memory this many seconds after its last use, and the next request waits
    for its load; with 0 it never does."""


class SamplingSettings(SettingGroup):
    """Values for requests that leave them open; they replace those of the model."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    """Tokens are drawn at this temperature; 0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """The likeliest tokens of this mass are kept."""
    top_k: int | None = Field(default=None, ge=0)
    """This many tokens are kept; 0 keeps all."""
    min_p: float | None = Field(default=None, ge=0, lt=1)
    """A token is kept from this share of the likeliest token's probability on."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """This is subtracted from the logit of a token that the answer has."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """This is subtracted for each time that the answer has a token."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    """The logits of tokens in the window are divided by this; 1 changes nothing."""
    repetition_context_size: int | None = Field(default=None, ge=0)
    """The window has this many last tokens; 0 takes all."""
    xtc_probability: float | None = Field(default=None, ge=0, le=1)
    """The likeliest candidates are removed at this share of the tokens."""
    xtc_threshold: float | None = Field(default=None, ge=0, le=0.5)
    """Candidates are removed if their probability reaches this, but for the last."""


class ModelTable(SettingGroup):
    """``[models.NAME]``, a registered model."""

    source: str = Field(min_length=1)
    """The files are a directory, a hub id, or semantic-demo."""
    aliases: tuple[ModelName, ...] = Field(default=(), max_length=100)
    """The model has these further names."""
    context: int | None = Field(default=None, ge=16)
    """This many tokens lower the model's own limit."""
    sampling: SamplingSettings = SamplingSettings()
    revision: str | None = Field(default=None, min_length=1)
    """The files are those of this branch, tag or commit of a hub repository."""
    adapter: str | None = Field(default=None, min_length=1)
    """The LoRA adapter of mlx_lm.lora in this directory changes the model."""
    draft: str | None = Field(default=None, min_length=1)
    """Tokens are drafted by this directory or hub id, a small model of the same vocabulary, by mtp,
    the head that the weights bring, or with off from the text alone; by default by the head where
    there is one."""

    kv_bits: int | None = Field(default=None, ge=0, le=PACKED_BITS, multiple_of=PACKED_BITS)
    """Keys and values of this model have these bits; by default those of cache.kv_bits."""
    kind: ModelKind | None = None
    """The kind is chat or embedding; by default that of its files."""
    pooling: Pooling | None = None
    """An embedding model pools by last, mean or cls; by default as its files have it."""

    @field_validator("aliases", mode="before")
    @classmethod
    def _read_json(cls, value: Any) -> Any:  # noqa: ANN401 - checked by pydantic afterwards
        """Read a JSON list, as it stands in an environment variable."""
        return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


class ModelsSettings(SettingGroup):
    """``[models]``: how models come and go, and a table for each registered model."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ModelTable] = Field(init=False)

    swap: Literal["manual", "on_demand"] = "manual"
    """With on_demand, jobs for another registered model cause a swap."""
    follow: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=FOLLOWING_PATTERNS, max_length=100
    )
    """The loaded model answers to names that match these patterns and that no model has."""

    @property
    def swaps_on_demand(self) -> bool:
        """Whether jobs cause a swap to their model."""
        return self.swap == "on_demand"

    @property
    def tables(self) -> Mapping[str, ModelTable]:
        """The registered models by name, in their order."""
        return self.__pydantic_extra__

    @model_validator(mode="before")
    @classmethod
    def _separate(cls, values: Any) -> Any:  # noqa: ANN401 - checked by pydantic afterwards
        """Refuse a model with the name of a setting, and a setting that does not exist."""
        if not isinstance(values, Mapping):
            return values
        for name, value in values.items():
            is_table = isinstance(value, Mapping | ModelTable)
            if name in cls.model_fields and is_table:
                raise ValueError(f"a model may not be called {name}: that is a setting of [models]")
            if name not in cls.model_fields and not is_table:
                known = ", ".join(cls.model_fields)
                raise ValueError(
                    f"{name} is no setting of [models] (there is: {known}), and a model"
                    f" is a table, [models.{name}], with a source"
                )
            if is_table and not re.match(NAME_PATTERN, name):
                raise ValueError(
                    f"a model may not be called {name!r}: it must match {NAME_PATTERN}"
                )
        return values


def named_table(model: ModelSettings, models: ModelsSettings) -> str | None:
    """Return the name of the registered model that ``model.id`` means, if it means one.

    The id is its name, one of its aliases, or its source.
    """
    for name, table in models.tables.items():
        if model.id == name or model.id in table.aliases:
            return name
    for name, table in models.tables.items():
        is_whole = table.adapter is None
        if model.id == table.source and is_whole and model.name in {None, name}:
            return name
    return None


def refuse_repeated_names(model: ModelSettings, models: ModelsSettings) -> None:
    """Check that every name and alias belongs to one model.

    Raises:
        ValueError: Naming both places.
    """
    first: dict[str, str] = {}
    for name, place in _claims(model, models):
        other = first.setdefault(name, place)
        if other != place:
            raise ValueError(f"the name {name} stands in {other} and in {place}")


def _claims(model: ModelSettings, models: ModelsSettings) -> Iterator[tuple[str, str]]:
    """Yield each name and the setting in which it stands."""
    for name in models.tables:
        yield name, f"models.{name}"
    for name, entry in models.tables.items():
        for alias in entry.aliases:
            yield alias, f"models.{name}.aliases"
    if named_table(model, models) is None and model.name is not None:
        yield model.name, "model.name"
