"""The files of a registered model on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from domain.model.inventory import ModelFiles
from domain.model.registry import ModelEntry, ModelKind
from ops.models.hub_cache import WEIGHTS, cached_model, has_weights, is_hub_id
from ops.setting_groups.models import DEMO_MODEL

#: Context length of a model whose configuration has none, in tokens.
CONTEXT_LENGTH_DEFAULT = 4096
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)


def context_length_of(config: Mapping[str, Any]) -> int:
    """Return the longest context that a model reads, in tokens."""
    for place in (config, config.get("text_config") or {}):
        for key in _CONTEXT_KEYS:
            if isinstance(place.get(key), int) and place[key] > 0:
                return int(place[key])
    return CONTEXT_LENGTH_DEFAULT


def directory_of(entry: ModelEntry) -> Path | None:
    """Return the directory with the files of a model, if they are all there."""
    if entry.source == DEMO_MODEL:
        spec = find_spec("worker.demo_model")
        places = list(spec.submodule_search_locations or ()) if spec else []
        directory = Path(places[0]) if places else None
    elif is_hub_id(entry.source):
        return cached_model(entry.source, entry.revision)
    else:
        directory = Path(entry.source).expanduser() if entry.source else None
    if directory is None or not (directory / "config.json").is_file():
        return None
    return directory if has_weights(directory) else None


def kind_of(entry: ModelEntry) -> ModelKind:
    """Return what a model computes, by its files.

    The directories of sentence-transformers list their modules in ``modules.json``, with a pooling
    among them (https://sbert.net/docs/sentence_transformer/usage/custom_models.html).
    """
    directory = directory_of(entry)
    if directory is None:
        return ModelKind.CHAT
    marks = ("modules.json", "1_Pooling/config.json")
    has_mark = any((directory / mark).is_file() for mark in marks)
    return ModelKind.EMBEDDING if has_mark else ModelKind.CHAT


def inspect_files(entry: ModelEntry) -> ModelFiles | None:
    """Return what the files of a model are, without reading the weights; ``None`` if missing."""
    directory = directory_of(entry)
    if directory is None:
        return None
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        weights = [path.stat() for path in directory.glob(WEIGHTS)]
    except (OSError, ValueError, RecursionError):
        # A configuration that is no JSON is there; the load reports what is wrong with it.
        config, weights = {}, []
    return ModelFiles(
        directory=str(directory),
        size_bytes=sum(stat.st_size for stat in weights),
        context_length=context_length_of(config if isinstance(config, dict) else {}),
        written_at=datetime.fromtimestamp(
            max((stat.st_mtime for stat in weights), default=0.0), UTC
        ),
    )
