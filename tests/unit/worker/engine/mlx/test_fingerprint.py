"""A fingerprint depends on the content of a model and on nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import wait_until
from worker.engine.mlx import fingerprint as module
from worker.engine.mlx.fingerprint import block_fingerprint, fingerprint

FILES = {
    "config.json": '{"model_type": "llama"}',
    "model.safetensors": "weights of yesterday",
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "chat_template.jinja": "{{ messages }}",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that has lain there for an hour."""
    directory = tmp_path / "model"
    directory.mkdir()
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as settled at once: the time of change cannot be set back."""
    monkeypatch.setattr(module, "_SETTLED_NS", -(10**12))


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "data" / "digests.json"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content is read."""
    names: list[str] = []
    original = hashlib.file_digest

    def note(file: Any, kind: str) -> object:
        names.append(Path(file.name).name)
        return original(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", note)
    return names


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_changes_the_fingerprint(model: Path, memory: Path, name: str) -> None:
    before = fingerprint(model, cache_file=memory)
    (model / name).write_text(FILES[name] + " ")
    after = fingerprint(model, cache_file=memory)
    assert before != after == fingerprint(model, cache_file=None)


def test_weights_swapped_in_disguise_change_the_fingerprint(model: Path, memory: Path) -> None:
    weights = model / "model.safetensors"
    stat = weights.stat()
    before = fingerprint(model, cache_file=memory)
    weights.write_text("weights of to-morrow"[: stat.st_size])
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert fingerprint(model, cache_file=memory) != before


def test_weights_replaced_by_a_rename_change_the_fingerprint(model: Path, memory: Path) -> None:
    weights = model / "model.safetensors"
    before = fingerprint(model, cache_file=memory)
    other = model.parent / "other"
    other.write_text("weights of to-morrow")
    shutil.copystat(weights, other)
    other.replace(weights)
    assert fingerprint(model, cache_file=memory) != before


@pytest.mark.parametrize(
    "name",
    [
        "merges.txt",
        "vocab.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "tokenizer.model",
        "chat_templates/tool_use.jinja",
        "modeling.py",
        "model-00002-of-00002.safetensors",
    ],
)
def test_an_added_file_that_the_libraries_read_changes_the_fingerprint(
    model: Path, name: str
) -> None:
    before = fingerprint(model, cache_file=None)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("x")
    assert fingerprint(model, cache_file=None) != before


@pytest.mark.parametrize(
    "name", ["README.md", "generation_config.json", "._model.safetensors", "LICENSE.txt"]
)
def test_a_file_that_computes_nothing_keeps_the_fingerprint(model: Path, name: str) -> None:
    before = fingerprint(model, cache_file=None)
    (model / name).write_text("x")
    assert fingerprint(model, cache_file=None) == before


def test_files_that_trade_contents_change_the_fingerprint(model: Path) -> None:
    (model / "tokenizer.json").write_text("a")
    (model / "tokenizer_config.json").write_text("b")
    before = fingerprint(model, cache_file=None)
    (model / "tokenizer.json").write_text("b")
    (model / "tokenizer_config.json").write_text("a")
    assert fingerprint(model, cache_file=None) != before


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2, os.symlink])
def test_a_copy_of_the_model_has_the_same_fingerprint(
    model: Path, memory: Path, copy: Callable[[Path, Path], object]
) -> None:
    there = model.parent / "elsewhere"
    there.mkdir()
    for path in model.iterdir():
        copy(path, there / path.name)
    assert fingerprint(there, cache_file=memory) == fingerprint(model, cache_file=memory)


def test_a_second_start_reads_nothing(model: Path, memory: Path, read: list[str]) -> None:
    first = fingerprint(model, cache_file=memory)
    assert sorted(read) == sorted(FILES)
    read.clear()
    assert fingerprint(model, cache_file=memory) == first
    assert read == []


def test_only_the_changed_file_is_read_again(model: Path, memory: Path, read: list[str]) -> None:
    fingerprint(model, cache_file=memory)
    read.clear()
    (model / "tokenizer.json").write_text("[]")
    fingerprint(model, cache_file=memory)
    assert read == ["tokenizer.json"]


def test_a_file_that_has_just_changed_is_not_cached(
    model: Path, memory: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLED_NS", 3600 * 10**9)
    fingerprint(model, cache_file=memory)
    read.clear()
    fingerprint(model, cache_file=memory)
    assert sorted(read) == sorted(FILES)


def test_a_file_that_changes_while_it_is_read_is_not_cached(
    model: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = hashlib.file_digest

    def meddle(file: Any, kind: str) -> object:
        digest = original(file, kind)
        config = model / "config.json"
        before = config.stat().st_mtime_ns

        def is_changed() -> bool:
            config.write_text("{}")
            return config.stat().st_mtime_ns != before  # the file system's clock ticks

        wait_until(is_changed)
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", meddle)
        fingerprint(model, cache_file=memory)
    assert fingerprint(model, cache_file=memory) == fingerprint(model, cache_file=None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"\xff",
        b'{"/x": 1}',
        b'{"/x|1|2": "ab"}',
        b'{"/x": {"look": 1, "digest": "a"}}',
    ],
)
def test_invalid_cache_file_is_replaced(model: Path, memory: Path, content: bytes) -> None:
    memory.parent.mkdir()
    memory.write_bytes(content)
    assert fingerprint(model, cache_file=memory) == fingerprint(model, cache_file=None)
    assert len(json.loads(memory.read_bytes())) == len(FILES)


def test_files_that_are_gone_are_forgotten(model: Path, memory: Path) -> None:
    fingerprint(model, cache_file=memory)
    (model / "chat_template.jinja").unlink()
    fingerprint(model, cache_file=memory)
    assert len(json.loads(memory.read_bytes())) == len(FILES) - 1


def test_fingerprint_is_the_same_without_a_cache_file(model: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert fingerprint(model, cache_file=blocked / "digests.json") == fingerprint(
        model, cache_file=None
    )


def test_blocks_belong_to_a_model_a_type_a_layout_and_a_computation() -> None:
    names = {
        block_fingerprint(model, kv_dtype=kv_dtype, layout=layout, computation=computation)
        for model in ("sha256:a", "sha256:b")
        for kv_dtype in ("bfloat16", "q8")
        for layout in ("stacked-1", "stacked-2")
        for computation in ("mlx-lm 1", "mlx-lm 2")
    }
    assert len(names) == 16
    assert all(len(name) == len("sha256:") + 64 for name in names)
    same = {"kv_dtype": "q8", "layout": "stacked-1", "computation": "mlx-lm 1"}
    assert block_fingerprint("sha256:a", **same) in names
