"""The wheel of this checkout, built once."""

from __future__ import annotations

import pytest

from tests.support.processes.installation import ROOT, Packages, build


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return build(ROOT, tmp_path_factory.mktemp("dist"))
