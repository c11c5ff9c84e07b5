"""The broker id and the previous worker of a data directory."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from domain.values import WorkerId
from ops.data_dir.lock import WorkerIdentity

FIRST, SECOND = WorkerId("worker-1"), WorkerId("worker-2")


def test_a_directory_keeps_its_broker_id_and_its_previous_worker(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    identity = WorkerIdentity(path)
    assert identity.previous_worker is None
    identity.record(FIRST)
    again = WorkerIdentity(path)
    assert (again.broker_id, again.previous_worker) == (identity.broker_id, FIRST)
    again.record(SECOND)
    assert WorkerIdentity(path).previous_worker == SECOND


def test_two_directories_have_two_broker_ids(tmp_path: Path) -> None:
    assert WorkerIdentity(tmp_path / "a").broker_id != WorkerIdentity(tmp_path / "b").broker_id


def test_a_directory_copied_to_another_machine_gets_another_broker_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker.json"
    here = WorkerIdentity(path)
    here.record(FIRST)
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    there = WorkerIdentity(path)
    assert there.broker_id != here.broker_id
    assert there.previous_worker is None


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"host": platform.node()})])
def test_an_incomplete_file_counts_as_missing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "worker.json"
    path.write_text(content)
    identity = WorkerIdentity(path)
    assert identity.broker_id.startswith("engine-")
    assert identity.previous_worker is None
