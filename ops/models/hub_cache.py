"""Files of models on this machine: those of a registered model, and the hub's local cache."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from huggingface_hub import constants

from domain.model.registry import ModelEntry, ModelFiles, ModelKind
from ops.settings.models import DEMO_MODEL

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


#: Time limit of the hub's answer whether it has a model, in seconds.
PROBE_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 4 << 20


def why_not_found(entry: ModelEntry, wanted: str = WEIGHTS) -> str | None:
    """Return why the files of a model are nowhere; ``None`` where they are, or may be.

    Args:
        entry: The hub is asked for one that is not on this machine.
        wanted: The files that matter, in the cache of the hub.
    """
    source, directory = entry.source, Path(entry.source).expanduser()
    if source == DEMO_MODEL or directory.is_dir():
        return None
    if directory.is_absolute() or not is_hub_id(source):
        return (
            f"there is no directory {directory.absolute()}, and {source!r} is no hub id"
            f" (owner/name) and not {DEMO_MODEL}; known models: semantic models ls"
        )
    repository = hub_cache_dir() / (_PREFIX + source.replace("/", "--"))
    if any(repository.glob(f"snapshots/*/{wanted}")):
        return None
    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _hub_refusal(source)
    return reason and f"{source} is not on this machine, and {reason}"


def _hub_refusal(hub_id: str) -> str | None:
    """Return why the hub does not give a model; ``None`` where it does, or may."""
    try:
        ask_hub(f"/{hub_id}")
    except HTTPError as error:
        if error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            return "the hub has no such model, or it is private and needs HF_TOKEN"
    except (OSError, HTTPException) as error:
        return hub_problem(error)
    return None


def ask_hub(path: str) -> bytes:
    """Return the reply of the hub to one GET below ``/api/models``; blocks for a few seconds.

    Raises:
        HTTPError: The hub refuses.
        OSError: It does not answer; or ``HTTPException``.
    """
    from huggingface_hub import get_token  # noqa: PLC0415 - 0.1 s of imports; few ask the hub

    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = Request(f"{constants.ENDPOINT}/api/models{path}", headers=headers)  # noqa: S310 - of the operator
    try:
        with urlopen(request, timeout=PROBE_S) as reply:  # noqa: S310 - the same
            answer: bytes = reply.read(_ANSWER_BYTES_MAX)
            return answer
    except HTTPError as error:
        error.close()
        raise


def hub_problem(error: Exception) -> str:
    """Return why the hub did not answer."""
    return f"the hub at {constants.ENDPOINT} cannot be reached: {getattr(error, 'reason', error)}"


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


#: Families whose images are read; the tests hold each against mlx-vlm.
VISION_FAMILIES: Final = frozenset({"gemma3", "mistral3", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe"})
#: Why a model reads text only.
READS_TEXT_ONLY: Final = "this model reads text only"
VISION_EXTRA_MISSING: Final = (
    'this model sees, and the packages of the extra "vision" are not installed (docs/models.md)'
)
#: Packages of the extra.
_VISION_PACKAGES: Final = ("mlx_vlm", "PIL")
#: A file of weights begins with the length of its header, which is JSON with their names.
_LENGTH_BYTES: Final = 8
_HEADER_BYTES_MAX: Final = 64 << 20
#: In names of weights of towers.
_TOWERS: Final = ("vision", "visual")


def blindness_of(directory: Path, config: Mapping[str, Any]) -> str | None:
    """Return why the images of a model are not read, ``None`` if they are; reads no weights."""
    if not config.get("vision_config") or not _has_tower(directory):
        return READS_TEXT_ONLY
    family = config.get("model_type")
    if family not in VISION_FAMILIES:
        return f"this service reads no images for models of the family {family}"
    has_packages = all(find_spec(package) is not None for package in _VISION_PACKAGES)
    return None if has_packages else VISION_EXTRA_MISSING


def _has_tower(directory: Path) -> bool:
    """Return whether there are weights of a tower: conversions for text alone leave it out."""
    names: Iterable[str] = ()
    try:
        index = directory / _INDEX
        if index.is_file():
            names = json.loads(index.read_text())["weight_map"]
        else:
            with next(directory.glob(WEIGHTS)).open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                names = json.loads(file.read(min(length, _HEADER_BYTES_MAX)))
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return False  # the load reports what is wrong with the files
    return any(tower in name for name in names for tower in _TOWERS)


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
        if entry.adapter is not None:
            weights += [path.stat() for path in Path(entry.adapter).expanduser().glob(WEIGHTS)]
    except (OSError, ValueError, RecursionError):
        # A configuration that is no JSON is there; the load reports what is wrong with it.
        config, weights = {}, []
    config = config if isinstance(config, dict) else {}
    family = config.get("model_type")
    return ModelFiles(
        directory=str(directory),
        size_bytes=sum(stat.st_size for stat in weights),
        context_length=context_length_of(config),
        family=family if isinstance(family, str) else "",
        sees=blindness_of(directory, config) is None,
        written_at=datetime.fromtimestamp(
            max((stat.st_mtime for stat in weights), default=0.0), UTC
        ),
    )
