"""The hub's local cache, read without the network: which models it holds, and where.

The hub's library imports an HTTP client, so only its constants are used here. Its documented layout
is ``models--OWNER--NAME/refs/REVISION``, a file with a commit, and ``snapshots/COMMIT/FILE``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from huggingface_hub import constants

#: The files of weights that mlx-lm loads; some repositories have further copies beside them.
WEIGHTS = "model*.safetensors"
#: The files of a repository that a model needs: no weights in other formats, no pictures, no
#: programs.
HUB_FILES = ("*.json", "1_Pooling/*.json", WEIGHTS, "*.model", "*.tiktoken", "*.txt", "*.jinja")

_CONFIG = "config.json"
_MAIN = "main"
_INDEX = "model.safetensors.index.json"
_PREFIX = "models--"
_IDS_MAX = 1000
#: ``owner/name``, or a name alone; no part is a path.
_HUB_ID: Final = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)


def hub_cache_dir() -> Path:
    """Return the directory of the cache; it need not exist."""
    return Path(constants.HF_HUB_CACHE)


def is_hub_id(source: str) -> bool:
    """Return whether a source has the form ``owner/name`` and is no directory."""
    if source.count("/") != 1 or source.startswith((".", "/", "~")) or source.endswith("/"):
        return False
    return not Path(source).is_dir()


def cached_ids() -> Iterator[str]:
    """Yield the id of each repository in the cache that holds a whole model, in order."""
    directories = sorted(hub_cache_dir().glob(f"{_PREFIX}*--*"))
    for directory in directories[:_IDS_MAX]:
        hub_id = directory.name.removeprefix(_PREFIX).replace("--", "/")
        if is_hub_id(hub_id) and cached_model(hub_id) is not None:
            yield hub_id


def cached_model(hub_id: str, revision: str | None = None) -> Path | None:
    """Return the directory of a whole model in the cache, if it is there.

    Args:
        hub_id: ``owner/name``.
        revision: Branch, tag or commit; by default the main branch as it was fetched last.
    """
    if not _HUB_ID.fullmatch(hub_id):
        return None
    repository = hub_cache_dir() / (_PREFIX + hub_id.replace("/", "--"))
    name = revision or _MAIN
    try:
        commit = (repository / "refs" / name).read_text()
    except (OSError, ValueError):
        commit = name
    directory = repository / "snapshots" / commit
    return directory if (directory / _CONFIG).is_file() and has_weights(directory) else None


def has_weights(directory: Path) -> bool:
    """Return whether a directory holds all weights that its index names, or any without one."""
    index = directory / _INDEX
    if not index.is_file():
        return any(directory.glob(WEIGHTS))
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, LookupError, AttributeError, OSError):
        return False
    return all((directory / shard).is_file() for shard in shards)
