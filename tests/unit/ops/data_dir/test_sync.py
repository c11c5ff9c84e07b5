"""Small files whose loss would cost more than themselves: content first, then the name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from domain.log.checkpoints import sign_checkpoint
from domain.log.record import LogHead
from ops.data_dir.permissions import write_once
from ops.log.admin.checkpoint_files import CheckpointFiles


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, in order."""
    seen: list[str] = []
    fsync = os.fsync

    def record_sync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append("directory" if is_directory else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    return seen


def test_secret_has_its_name_for_good_before_it_is_used(tmp_path: Path, synced: list[str]) -> None:
    write_once(tmp_path / "secret.key", "text")
    assert synced == ["file", "directory"]


def test_first_head_has_its_file_for_good(tmp_path: Path, synced: list[str]) -> None:
    files = CheckpointFiles.of(tmp_path)
    checkpoint = sign_checkpoint(
        LogHead(position=1, hash="0" * 64), key=b"k" * 32, at="2026-01-01T00:00:00Z"
    )
    files.append(checkpoint)
    last = ["file", "directory"]
    assert synced == ["file", "directory", *last]
    files.append(checkpoint)
    assert synced == ["file", "directory", *last, "file", *last]
