"""Processes on one block store, for the tests of contexts on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.disk_bench import DiskBench
from tests.support.models.tiny_architectures import LLAMA, Architecture


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., DiskBench]]:
    """Return what starts a process on the store, ending the one before."""
    made: list[DiskBench] = []

    def start(architecture: Architecture = LLAMA, **more: Any) -> DiskBench:
        if made:
            made.pop().close()
        made.append(DiskBench(architecture, tmp_path / "store", **more))
        return made[-1]

    yield start
    for each in made:
        each.close()
