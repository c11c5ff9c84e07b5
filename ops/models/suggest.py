"""What fits this machine, and what the hub has: asked when a person looks for a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlencode

import psutil
from huggingface_hub import constants
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from domain.model.suggested import SUGGESTED, usable_memory
from ops.models.hub_cache import ask_hub, hub_problem

_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
#: Models of one search.
FOUND_MAX: Final = 20


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
    sizes = [psutil.virtual_memory().total]
    for file in _LIMITS:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    return min(sizes)


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
