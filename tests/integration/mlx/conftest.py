"""Runners of their own, for the tests of the cache and of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.models.blas import use_reference
from tests.support.models.runner_probe import Bench, MakeBench
from worker.engine.mlx import cpu
from worker.engine.mlx.model import loader


@pytest.fixture(autouse=True, scope="module")
def _reference_blas() -> Iterator[None]:
    """Multiply with the BLAS whose sums do not depend on the number of rows.

    Tests of this directory compare answers computed alone and together, to the last bit; sums of
    OpenBLAS differ by some 1e-6 with the number of rows.
    """
    with pytest.MonkeyPatch.context() as patch:
        if cpu.computes_on_cpu():
            patch.setattr(loader, "use_openblas", lambda: False)
            use_reference()
        yield


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
