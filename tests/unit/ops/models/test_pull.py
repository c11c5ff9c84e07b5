"""A download that finds no space, and one of a model that another process downloads."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from types import SimpleNamespace

import pytest

from ops.models.pull import (
    FREE_BYTES_KEPT,
    LARGE_BYTES,
    HubFile,
    HubModel,
    PullFailed,
    incomplete,
    pull,
)

WEIGHTS = HubFile(name="model.safetensors", size_bytes=2 * LARGE_BYTES, sha256="a" * 64)
MODEL = HubModel(hub_id="org/m", revision=None, commit="c" * 40, files=(WEIGHTS,))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_the_space_is_checked_before_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    free = WEIGHTS.size_bytes + FREE_BYTES_KEPT - 1
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(PullFailed, match=r"org/m needs 16\.8 MB more, and 1\.1 GB must stay free"):
        pull(MODEL, lambda _: None)


def test_bytes_that_are_here_need_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = incomplete(MODEL.blob(WEIGHTS))
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(LARGE_BYTES))
    assert MODEL.present_bytes == LARGE_BYTES
    free = LARGE_BYTES + FREE_BYTES_KEPT - 1
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(PullFailed, match=r"needs 8\.4 MB more"):
        pull(MODEL, lambda _: None)


def test_a_disk_that_becomes_full_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ops.models.pull.http_get", write)
    with pytest.raises(PullFailed, match=f"the disk of {cache} is full"):
        pull(MODEL, lambda _: None)


def test_two_processes_do_not_write_one_file() -> None:
    partial = incomplete(MODEL.blob(WEIGHTS))
    partial.parent.mkdir(parents=True)
    with partial.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PullFailed, match="another process is downloading org/m"):
            pull(MODEL, lambda _: None)
