"""Whose hand a worker takes messages into."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from domain.values import WorkerId
from ops.adapters.data_dir.worker_place import WorkerPlace

FIRST, SECOND = WorkerId("worker-1"), WorkerId("worker-2")


def test_a_directory_keeps_its_hand_and_remembers_who_was_there(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    place = WorkerPlace(path)
    assert place.last is None
    place.enter(FIRST)
    again = WorkerPlace(path)
    assert (again.hand, again.last) == (place.hand, FIRST)
    again.enter(SECOND)
    assert WorkerPlace(path).last == SECOND


def test_two_directories_have_two_hands(tmp_path: Path) -> None:
    assert WorkerPlace(tmp_path / "a").hand != WorkerPlace(tmp_path / "b").hand


def test_a_directory_that_was_copied_to_another_machine_has_another_hand_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker.json"
    here = WorkerPlace(path)
    here.enter(FIRST)
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    there = WorkerPlace(path)
    assert there.hand != here.hand
    assert there.last is None


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"host": platform.node()})])
def test_half_a_file_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "worker.json"
    path.write_text(content)
    place = WorkerPlace(path)
    assert place.hand.startswith("engine-")
    assert place.last is None
