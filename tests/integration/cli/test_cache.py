"""``semantic cache`` on real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ops.blockstore.blocks import StoredBlock
from ops.blockstore.store import BlockStore
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.settings.settings import load_settings
from tests.support.builders.blocks import (
    FINGERPRINT,
    OTHER_FINGERPRINT,
    make_chain,
    make_checkpoint,
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SEMANTIC_CACHE__DIR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def store(root: Path) -> BlockStore:
    """A store with three blocks of one model and two of another."""
    store = BlockStore(root, budget_bytes=1 << 30, clock=SystemClock())
    store.put_many(make_chain(1, 3))
    store.put_many(make_chain(2, 2, fingerprint=OTHER_FINGERPRINT))
    return store


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["cache", *arguments])


def _object(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.kv"))


def test_the_settings_say_where_and_how_much(root: Path) -> None:
    settings = load_settings()
    assert settings.cache_dir == root
    assert settings.cache.disk_budget_bytes == 20_000_000_000


def test_ls_shows_models_and_their_blocks(store: BlockStore, root: Path) -> None:
    found = _object("ls", "--blocks", "--limit", "2")
    assert found["dir"] == str(root)
    assert found["blocks"] == 5
    assert found["size_bytes"] == store.stats().size_bytes
    assert [(each["model"], each["blocks"]) for each in found["models"]] == [
        ("a1" * 8, 3),
        ("b2" * 8, 2),
    ]
    assert len(found["blocks_listed"]) == 2
    text = _run("ls", "--blocks")
    assert text.exit_code == 0
    assert "a1" * 8 in text.stdout


def test_ls_of_nothing_is_empty_and_makes_nothing(root: Path) -> None:
    assert _object("ls")["blocks"] == 0
    assert _run("ls").exit_code == 0
    assert not root.exists()


def test_verify_finds_the_one_damaged_block(store: BlockStore, root: Path) -> None:
    assert _object("ls", "--verify") | {"size_bytes": 0} == {
        "ok": True,
        "blocks": 5,
        "size_bytes": 0,
        "rejected": [],
    }
    assert store.stats().blocks == 5
    bad = _files(root)[0]
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    found = _object("ls", "--verify", exit_code=1)
    assert [each["reason"] for each in found["rejected"]] == ["checksum"]
    assert found["rejected"][0]["hash"] in bad.name
    assert bad.exists()
    assert _run("ls", "--verify", "--delete").exit_code == 1
    assert not bad.exists()
    assert _run("ls", "--verify").exit_code == 0


def test_verify_tells_blocks_in_the_wrong_models_directory(store: BlockStore, root: Path) -> None:
    assert store.stats().blocks == 5
    (root / ("a1" * 8)).rename(root / ("cc" * 8))
    found = _object("ls", "--verify", exit_code=1)
    assert {each["reason"] for each in found["rejected"]} == {"wrong_fingerprint"}
    assert len(found["rejected"]) == 3


def test_gc_within_the_cap_deletes_nothing(store: BlockStore, root: Path) -> None:
    assert _object("gc")["deleted"] == {"model": 0, "orphan": 0, "cap": 0}
    assert len(_files(root)) == store.stats().blocks == 5


def test_gc_deletes_leftovers_and_what_is_out_of_reach(store: BlockStore, root: Path) -> None:
    first = next(path for path in _files(root / ("a1" * 8)) if "-root-" in path.name)
    leftover = first.parent / f".{2**22 + 1}-{'0' * 16}.tmp"
    leftover.touch()
    first.unlink()
    assert _object("ls")["orphans"] == 2
    planned = _object("gc", "--dry-run")
    assert planned["deleted"] == {"model": 0, "orphan": 2, "cap": 0}
    assert leftover.exists()
    assert _object("gc") == planned | {"dry_run": False}
    assert not leftover.exists()
    assert len(_files(root)) == 2
    assert isinstance(
        store.get(make_chain(2, 2, fingerprint=OTHER_FINGERPRINT)[1].hash, OTHER_FINGERPRINT),
        StoredBlock,
    )


def test_gc_shrinks_to_a_cap_from_the_ends(store: BlockStore, root: Path) -> None:
    cap_bytes = store.stats().size_bytes - 1
    assert _object("gc", "--budget-gb", str(cap_bytes / 1e9))["deleted"]["cap"] == 1
    assert store.get(make_chain(1, 3)[2].hash, FINGERPRINT) is None
    assert len(_files(root)) == 4


def test_gc_deletes_a_model_or_everything(store: BlockStore, root: Path) -> None:
    assert _object("gc", "--model", "a1" * 8)["deleted"]["model"] == 3
    assert store.get(make_chain(1, 3)[0].hash, FINGERPRINT) is None
    assert _run("gc", "--model", "a1" * 8).exit_code == 1
    assert _object("gc", "--all")["blocks"] == 0
    assert _files(root) == []


def test_checkpoints_are_listed_with_their_model_and_deleted_with_it(root: Path) -> None:
    store = BlockStore(root, budget_bytes=1 << 30, clock=SystemClock())
    chain = make_chain(1, 2)
    store.put_many([*chain, make_checkpoint(chain), make_checkpoint([])])
    models = {each["model"]: each["checkpoints_of"] for each in _object("ls")["models"]}
    assert models == {"a1" * 8: None, "b2" * 8: "a1" * 8}
    assert f"checkpoints of {'a1' * 8}" in _run("ls").stdout
    assert _object("ls", "--verify")["ok"]
    assert _object("gc", "--dry-run")["blocks"] == 4
    assert _object("gc", "--model", "a1" * 8)["deleted"]["model"] == 4
    assert _files(root) == []
