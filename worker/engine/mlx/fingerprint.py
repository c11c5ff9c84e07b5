"""Name a model by what it computes with."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Files that decide what a model says to a given request, wherever the libraries look for them.
_PATTERNS = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "chat_templates/*.jinja",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
    "*.py",
)
#: Says how to draw, not what to compute; each job records how it drew.
_LEFT_OUT = frozenset({"generation_config.json"})
#: A file that changed less long ago is not remembered: it could change again and look the same.
_SETTLED_NS = 2 * 10**9


def fingerprint(model_dir: Path, *, cache_file: Path | None) -> str:
    """Return a digest over the content of configuration, tokenizer, template and weights.

    Where the model lies is no part of it: a copy has the same.

    Args:
        model_dir: The model.
        cache_file: Where the digests of files are remembered, so that gigabytes are not read at
            each start; ``None`` to read them each time.
    """
    known = {} if cache_file is None else _read(cache_file)
    total = hashlib.sha256()
    for path in _files(model_dir):
        digest = _digest_of(path, known)
        total.update(f"{path.relative_to(model_dir).as_posix()}\0{digest}\n".encode())
    if cache_file is not None:
        _write(cache_file, known)
    return f"sha256:{total.hexdigest()}"


def block_fingerprint(model: str, *, kv_dtype: str, layout: str) -> str:
    """Return what KV blocks belong to.

    Args:
        model: What ``fingerprint`` gave.
        kv_dtype: Type of the elements of keys and values, or how they are quantised.
        layout: Which tensors a block has, and the version of that.
    """
    parts = json.dumps([model, kv_dtype, layout])
    return f"sha256:{hashlib.sha256(parts.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Known:
    """A digest and what the file looked like when it was taken.

    The time of change (``ctime``) and the inode see what size and ``mtime`` do not: a swap that
    restores the time, as ``cp -p`` and archives do.
    """

    look: tuple[int, ...]
    digest: str


def _files(model_dir: Path) -> Iterator[Path]:
    found = {path for pattern in _PATTERNS for path in model_dir.glob(pattern)}
    for path in sorted(found):
        # Hidden files are those of file managers and downloads.
        if path.is_file() and path.name not in _LEFT_OUT and not path.name.startswith("."):
            yield path


def _digest_of(path: Path, known: dict[str, _Known]) -> str:
    """Return the digest of a file from memory or by reading it, and remember it if that is safe."""
    key = str(path.resolve())
    now_ns = time.time_ns()
    look = _look(path)
    before = known.get(key)
    if before is not None and before.look == look:
        return before.digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _, modified_ns, changed_ns, _ = look
    known.pop(key, None)
    if _look(path) == look and max(modified_ns, changed_ns) < now_ns - _SETTLED_NS:
        known[key] = _Known(look, digest)
    return digest


def _look(path: Path) -> tuple[int, int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _read(cache_file: Path) -> dict[str, _Known]:
    """Return what is remembered; nothing if the file is missing or not ours."""
    try:
        given = json.loads(cache_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        path: _Known(tuple(entry["look"]), entry["digest"])
        for path, entry in (given.items() if isinstance(given, dict) else ())
        if _is_entry(entry)
    }


def _is_entry(entry: Any) -> bool:  # noqa: ANN401 - read from a file
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("look"), list)
        and isinstance(entry.get("digest"), str)
    )


def _write(cache_file: Path, known: Mapping[str, _Known]) -> None:
    """Replace the file as a whole; if that is not possible, the next start reads the weights."""
    present = {
        path: {"look": entry.look, "digest": entry.digest}
        for path, entry in known.items()
        if Path(path).exists()
    }
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        draft = cache_file.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(present, sort_keys=True))
        draft.replace(cache_file)
    except OSError:
        return
