"""Repositories in a cache of the hub, in its layout, without weights that compute anything."""

from __future__ import annotations

import json
from pathlib import Path

COMMIT = "c" * 40


def cache_model(
    cache: Path,
    hub_id: str,
    *,
    commit: str = COMMIT,
    ref: str = "main",
    shards: int = 1,
    missing: int = 0,
    config: bool = True,
) -> Path:
    """Put a model into a cache; return the directory of its snapshot.

    Args:
        cache: The directory of the cache.
        hub_id: ``owner/name``.
        commit: Of the snapshot.
        ref: Branch or tag that names the commit.
        shards: Files of weights; more than one have an index.
        missing: Shards that were not fetched.
        config: Whether ``config.json`` is there.
    """
    root = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / ref).write_text(commit)
    if config:
        (snapshot / "config.json").write_text('{"max_position_embeddings": 2048}')
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    if shards > 1:
        index = {"weight_map": {f"w{n}": name for n, name in enumerate(names)}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names[: shards - missing]:
        (snapshot / name).write_bytes(b"weights")
    return snapshot
