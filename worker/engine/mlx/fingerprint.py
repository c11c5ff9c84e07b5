"""Fingerprints of models and of their KV blocks."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ops.data_dir.permissions import make_directory, replace_file
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
#: What is loaded of an adapter; checkpoints of its training stand beside it.
_ADAPTER_FILES = ("adapter_config.json", "adapters.safetensors")
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
    cached = {} if cache_file is None else read_object(cache_file)
    combined = hashlib.sha256()
    files = [(path.relative_to(model_dir).as_posix(), path) for path in _files(model_dir)]
    if adapter is not None:
        files += [(f"adapter/{name}", adapter / name) for name in _ADAPTER_FILES]
    for name, path in files:
        combined.update(f"{name}\0{_digest_of(path, cached)}\n".encode())
    if cache_file is not None:
        write_object(cache_file, {path: one for path, one in cached.items() if Path(path).exists()})
    return f"sha256:{combined.hexdigest()}"


def block_fingerprint(model: str, *, kv_dtype: str, layout: str, computation: str) -> str:
    """Return the fingerprint of KV blocks; only blocks with equal fingerprints may be mixed.

    Args:
        kv_dtype: Form of keys and values; see ``ModelCacheSpec.form``.
        layout: Version of the block layout, and its parameters.
    """
    parts = json.dumps([model, kv_dtype, layout, computation])
    return f"sha256:{hashlib.sha256(parts.encode()).hexdigest()}"


def identities(model_dir: Path) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return path, size, times and inode of each file of a model; no file is read."""
    return tuple((str(path.resolve()), _identity(path)) for path in _files(model_dir))


def _files(model_dir: Path) -> Iterator[Path]:
    found = {path for pattern in _PATTERNS for path in model_dir.glob(pattern)}
    for path in sorted(found):
        # Hidden files belong to file managers and downloads.
        if path.is_file() and path.name not in _LEFT_OUT and not path.name.startswith("."):
            yield path


def _digest_of(path: Path, cached: dict[str, Any]) -> str:
    """Return a file's digest, cached or computed; cache it where the file is old enough.

    Args:
        cached: By path: the identity of a file when it was read, and its digest last.
    """
    key = str(path.resolve())
    now_ns = time.time_ns()
    identity = _identity(path)
    entry = cached.get(key)
    if isinstance(entry, list) and entry[:-1] == [*identity]:
        return str(entry[-1])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _, modified_ns, changed_ns, _ = identity
    cached.pop(key, None)
    if _identity(path) == identity and max(modified_ns, changed_ns) < now_ns - _SETTLED_NS:
        cached[key] = [*identity, digest]
    return digest


def _identity(path: Path) -> tuple[int, int, int, int]:
    """Return the size, ``mtime``, ``ctime`` and inode of a file.

    ``ctime`` and inode detect a replaced file whose size and ``mtime`` are the same, as ``cp -p``
    and archives produce.
    """
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file that caches something; empty if it is missing or garbled."""
    try:
        given = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return given if isinstance(given, dict) else {}


def write_object(file: Path, content: Mapping[str, Any]) -> None:
    """Replace such a file; one that cannot be written is left as it is."""
    with suppress(OSError):
        make_directory(file.parent)
        replace_file(file, json.dumps(content))


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
