"""EXP-001: does probing find a model's cache layout?  ``python -m bench.experiments.exp001``.

The expected layouts were derived by hand for tiny networks of each architecture
(``tests/support/models/tiny_architectures.py``), and from ``config.json`` for the demo model. The
probe sees only the caches of the loaded network.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import mlx.core as mx
import mlx_lm.utils

import worker.demo_model
from bench.experiments.report import print_conditions, print_table, print_verdict
from domain.kv.spec import BLOCK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec
from tests.support.models.tiny_architectures import ARCHITECTURES
from worker.engine.mlx.kv.probe import probe_spec


def main() -> None:
    """Print the table."""
    started_s = time.monotonic()
    wrong: list[str] = []
    print_table(
        ("network", "expected layers", ">block bytes, expected", ">probed", "probe agrees"),
        _rows(wrong),
    )
    print_verdict(
        reached=not wrong,
        why=f"{', '.join(wrong)} differ" if wrong else "every layer of every network agrees.",
    )
    print_conditions(started_s)


def _rows(wrong: list[str]) -> Iterator[tuple[object, ...]]:
    for name, expected, probed in _pairs():
        if expected != probed:
            wrong.append(name)
        yield (
            name,
            _described(expected.layers),
            f"{expected.stored_bytes(BLOCK_TOKENS):,}",
            f"{probed.stored_bytes(BLOCK_TOKENS):,}",
            "yes" if expected == probed else "**no**",
        )


def _pairs() -> Iterator[tuple[str, ModelCacheSpec, ModelCacheSpec]]:
    for architecture in ARCHITECTURES:
        expected = ModelCacheSpec(layers=architecture.layers, dtype="float32")
        yield architecture.name, expected, probe_spec(architecture.make(mx.float32))
    directory = Path(worker.demo_model.__file__).parent
    network, *_ = mlx_lm.utils.load(str(directory))
    yield "demo model", _of_config(directory / "config.json"), probe_spec(network)


def _of_config(file: Path) -> ModelCacheSpec:
    config = json.loads(file.read_text())
    layers = tuple(
        LayerSpec(
            kind=LayerKind.SLIDING if kind.startswith("sliding") else LayerKind.FULL,
            kv_heads=config["num_key_value_heads"],
            key_dim=config["head_dim"],
            value_dim=config["head_dim"],
            element_bytes=2,
            window=config["sliding_window"] if kind.startswith("sliding") else 0,
        )
        for kind in config["layer_types"]
    )
    return ModelCacheSpec(layers=layers, dtype=config["torch_dtype"])


def _described(layers: tuple[LayerSpec, ...]) -> str:
    parts = []
    for layer, run in groupby(layers):
        times = f"{len(list(run))}x "
        if layer.kind is LayerKind.STATE:
            parts.append(f"{times}state of {layer.state_bytes} B")
        else:
            window = f" of {layer.window}" if layer.window else ""
            parts.append(f"{times}{layer.kind}{window}, {layer.kv_heads} heads of {layer.key_dim}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
