"""What fits this machine, and what the hub has: asked when a person looks for a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final, Literal
from urllib.parse import urlencode

import psutil
from huggingface_hub import constants
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from domain.kv.plan import AGENTS_DEFAULT, metal_working_set, planned_share
from ops.models.cgroups import CgroupFiles, cgroup_limit_bytes
from ops.models.hub_cache import ask_hub, hub_problem

#: Models of one search.
FOUND_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedModel:
    """A model of the hub, sized from its published shape as ``semantic models plan`` sizes it.

    Attributes:
        hub_id: ``owner/name``.
        good_for: In a few words.
        step_bytes: Working set of one step.
        context_bytes: One context of ``CONTEXT_TOKENS_DEFAULT`` tokens.
        first_bytes: The budget that the first one needs, with room for what it shares.
        context_length: Longest context, in tokens.
    """

    hub_id: str
    good_for: str
    weights_bytes: int
    step_bytes: int
    context_bytes: int
    first_bytes: int
    context_length: int

    def contexts_in(self, usable_bytes: int) -> int:
        """Return the planned contexts that stay in memory together; 0 if the model does not fit."""
        left = usable_bytes - self.weights_bytes - self.step_bytes - self.first_bytes
        return max(0, min(AGENTS_DEFAULT, 1 + left // self.context_bytes))


#: The smallest first; ``tests/integration/mlx/model/test_suggested.py`` sizes them anew.
SUGGESTED: Final = (
    SuggestedModel(
        hub_id="mlx-community/Qwen3.5-4B-4bit",
        good_for="chat and small tools",
        weights_bytes=2_367_117_312,
        step_bytes=1_238_171_648,
        context_bytes=706_871_296,
        first_bytes=789_981_866,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="mlx-community/Qwen3.5-9B-4bit",
        good_for="tools and short programs",
        weights_bytes=5_038_040_064,
        step_bytes=1_313_669_120,
        context_bytes=706_871_296,
        first_bytes=789_981_866,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="openai/gpt-oss-20b",
        good_for="reasoning, fast for its size",
        weights_bytes=13_761_264_768,
        step_bytes=1_130_315_776,
        context_bytes=497_811_456,
        first_bytes=521_830_399,
        context_length=131_072,
    ),
    SuggestedModel(
        hub_id="mlx-community/gemma-4-26b-a4b-it-4bit",
        good_for="long texts, fast for its size",
        weights_bytes=14_200_055_868,
        step_bytes=512_229_376,
        context_bytes=645_529_600,
        first_bytes=890_879_999,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="mlx-community/Qwen3.6-27B-4bit",
        good_for="coding agents, slow",
        weights_bytes=15_132_802_048,
        step_bytes=2_473_328_640,
        context_bytes=1_464_664_064,
        first_bytes=1_686_050_133,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="mlx-community/GLM-4.7-Flash-4bit",
        good_for="coding agents",
        weights_bytes=16_852_196_608,
        step_bytes=1_626_062_848,
        context_bytes=1_082_880_000,
        first_bytes=1_127_999_999,
        context_length=202_752,
    ),
    SuggestedModel(
        hub_id="mlx-community/Qwen3.6-35B-A3B-4bit",
        good_for="coding agents, fast for its size",
        weights_bytes=19_508_787_456,
        step_bytes=1_374_230_528,
        context_bytes=473_989_120,
        first_bytes=560_810_666,
        context_length=262_144,
    ),
)


class SuggestionRow(TypedDict):
    """A model that is worth a try.

    ``contexts`` of 20,000 tokens, at most five, stay in memory together; with 0 the model does not
    fit. ``is_here``: its files are on this machine.
    """

    id: str
    good_for: str
    weights_bytes: int
    context_length: int
    contexts: int
    is_here: bool


class Suggestions(TypedDict):
    """Suggested models for a machine, the smallest first; sizes in bytes."""

    object: Literal["list"]
    memory_bytes: int
    usable_bytes: int
    data: list[SuggestionRow]


class HubRow(TypedDict):
    """A model of the hub in the format of MLX."""

    id: str
    downloads: int


class HubSearch(TypedDict):
    """Models of the hub, the most downloaded first; ``problem``: why it cannot be searched."""

    object: Literal["list"]
    endpoint: str
    problem: str | None
    data: list[HubRow]


def usable_memory(memory_bytes: int, *, is_mac: bool) -> int:
    """Return the part of a machine's memory that a plan may use, in bytes."""
    return planned_share(metal_working_set(memory_bytes) if is_mac else memory_bytes)


def suggestions(here: Iterable[str], memory_bytes: int | None = None) -> Suggestions:
    """Return the suggested models.

    Args:
        here: Sources of models whose files are on this machine.
        memory_bytes: Of a Mac that is planned; ``None`` for this machine.
    """
    is_mac = memory_bytes is not None or sys.platform == "darwin"
    whole = _machine_memory() if memory_bytes is None else memory_bytes
    usable, present = usable_memory(whole, is_mac=is_mac), frozenset(here)
    rows: list[SuggestionRow] = [
        {
            "id": one.hub_id,
            "good_for": one.good_for,
            "weights_bytes": one.weights_bytes,
            "context_length": one.context_length,
            "contexts": one.contexts_in(usable),
            "is_here": one.hub_id in present,
        }
        for one in SUGGESTED
    ]
    return {"object": "list", "memory_bytes": whole, "usable_bytes": usable, "data": rows}


def _machine_memory() -> int:
    limit = cgroup_limit_bytes(CgroupFiles())
    whole: int = psutil.virtual_memory().total
    return whole if limit is None else min(whole, limit)


def search_hub(words: str) -> HubSearch:
    """Return the models of the hub that a text finds; blocks for a few seconds at most."""
    found: HubSearch = {
        "object": "list",
        "endpoint": constants.ENDPOINT,
        "problem": None,
        "data": [],
    }
    if constants.HF_HUB_OFFLINE:
        return {**found, "problem": "HF_HUB_OFFLINE is set"}
    query = {"search": words, "filter": "mlx", "sort": "downloads", "limit": FOUND_MAX}
    try:
        listed = json.loads(ask_hub(f"?{urlencode(query)}"))
        rows = [(str(one["id"]), int(one.get("downloads") or 0)) for one in listed[:FOUND_MAX]]
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        return {**found, "problem": hub_problem(error)}
    return {**found, "data": [{"id": name, "downloads": count} for name, count in rows]}
