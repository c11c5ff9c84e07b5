"""Fingerprints of models and of their KV blocks."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from domain.kv.hashing import LAYOUT_VERSION
from domain.kv.spec import ModelCacheSpec
from worker.engine.mlx.cpu import blas_name
from worker.engine.mlx.untyped import Network

#: Files that determine a model's answer to a request: every place where mlx-lm and transformers
#: look for weights, configuration, tokenizer and chat template.
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
#: Holds sampling defaults only; each job records its own sampling parameters.
_LEFT_OUT = frozenset({"generation_config.json"})
#: The digest of a file that changed within this time is not cached: the file could change again
#: with the same timestamps.
_SETTLED_NS = 2 * 10**9


def fingerprint(model_dir: Path, adapter: Path | None = None, *, cache_file: Path | None) -> str:
    """Return a digest over the content of configuration, tokenizer, template and weights.

    The directory's own path is not part of the digest, so a copy has the same fingerprint.

    Args:
        cache_file: Caches the digests of files, so that weights are not read at each start;
            ``None`` to read every file.
    """
    cached = {} if cache_file is None else _read(cache_file)
    combined = hashlib.sha256()
    files = [(path.relative_to(model_dir).as_posix(), path) for path in _files(model_dir)]
    if adapter is not None:
        files += [(f"adapter/{path.name}", path) for path in _adapter_files(adapter)]
    for name, path in files:
        combined.update(f"{name}\0{_digest_of(path, cached)}\n".encode())
    if cache_file is not None:
        _write(cache_file, cached)
    return f"sha256:{combined.hexdigest()}"


def block_fingerprint(model: str, *, kv_dtype: str, layout: str, computation: str) -> str:
    """Return the fingerprint of KV blocks; only blocks with equal fingerprints may be mixed.

    Args:
        kv_dtype: Form of keys and values; see ``ModelCacheSpec.form``.
        layout: Version of the block layout, and its parameters.
    """
    parts = json.dumps([model, kv_dtype, layout, computation])
    return f"sha256:{hashlib.sha256(parts.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _CachedDigest:
    """A file's digest, and its size, ``mtime``, ``ctime`` and inode when it was computed.

    ``ctime`` and inode detect a replaced file whose size and ``mtime`` are the same, as
    ``cp -p`` and archives produce.
    """

    identity: tuple[int, ...]
    digest: str


def identities(model_dir: Path) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return path, size, times and inode of each file of a model; no file is read."""
    return tuple((str(path.resolve()), _identity(path)) for path in _files(model_dir))


def _adapter_files(adapter: Path) -> Iterator[Path]:
    """Yield what is loaded of an adapter; checkpoints of its training stand beside it."""
    yield adapter / "adapter_config.json"
    yield adapter / "adapters.safetensors"


def _files(model_dir: Path) -> Iterator[Path]:
    found = {path for pattern in _PATTERNS for path in model_dir.glob(pattern)}
    for path in sorted(found):
        # Hidden files belong to file managers and downloads.
        if path.is_file() and path.name not in _LEFT_OUT and not path.name.startswith("."):
            yield path


def _digest_of(path: Path, cached: dict[str, _CachedDigest]) -> str:
    """Return a file's digest, cached or computed; cache it where the file is old enough."""
    key = str(path.resolve())
    now_ns = time.time_ns()
    identity = _identity(path)
    entry = cached.get(key)
    if entry is not None and entry.identity == identity:
        return entry.digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _, modified_ns, changed_ns, _ = identity
    cached.pop(key, None)
    if _identity(path) == identity and max(modified_ns, changed_ns) < now_ns - _SETTLED_NS:
        cached[key] = _CachedDigest(identity, digest)
    return digest


def _identity(path: Path) -> tuple[int, int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _read(cache_file: Path) -> dict[str, _CachedDigest]:
    """Return the cached digests; empty if the file is missing or has another format."""
    try:
        given = json.loads(cache_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        path: _CachedDigest(tuple(entry["look"]), entry["digest"])
        for path, entry in (given.items() if isinstance(given, dict) else ())
        if _is_entry(entry)
    }


def _is_entry(entry: Any) -> bool:  # noqa: ANN401 - read from a file
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("look"), list)
        and isinstance(entry.get("digest"), str)
    )


def _write(cache_file: Path, cached: Mapping[str, _CachedDigest]) -> None:
    """Replace the file atomically. On an error, the next start reads the weights again."""
    present = {
        path: {"look": entry.identity, "digest": entry.digest}
        for path, entry in cached.items()
        if Path(path).exists()
    }
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        draft = cache_file.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(present, sort_keys=True))
        draft.replace(cache_file)
    except OSError:
        return


def fingerprint_of_blocks(model: str, spec: ModelCacheSpec, computation: str) -> str:
    """Return the fingerprint that the blocks of a model share."""
    layout = f"{LAYOUT_VERSION}:{spec.block_tokens}"
    return block_fingerprint(model, kv_dtype=spec.form, layout=layout, computation=computation)


def fingerprint_in_form(model: str, kv_bits: int) -> str:
    """Return the fingerprint of a model that keeps keys and values in ``kv_bits``; 0: exactly."""
    if not kv_bits:
        return model
    return f"sha256:{hashlib.sha256(f'{model} kv {kv_bits}'.encode()).hexdigest()}"


def computation_of(network: Network) -> str:
    """Return what computes a network's keys and values: libraries, source code, kind of device.

    A block of another version of MLX or mlx-lm, of another BLAS, of another implementation of the
    architecture, or of another kind of device may hold other values for the same tokens.
    """
    source = sys.modules[type(network).__module__].__file__
    assert source is not None, "a model class is defined in a file"
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    device = mx.default_device().type
    libraries = f"mlx {version('mlx')} {blas_name()} mlx-lm {version('mlx-lm')}"
    return f"{libraries} {digest} {device.name}"
