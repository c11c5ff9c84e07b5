"""Runners of their own, for the tests of the cache and of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.models.runner_probe import Bench, MakeBench


@pytest.fixture
def bench() -> Iterator[MakeBench]:
    """Return what makes a runner of its own, ended with the test."""
    made: list[Bench] = []

    def make(*args: Any, **more: Any) -> Bench:
        made.append(Bench(*args, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()
