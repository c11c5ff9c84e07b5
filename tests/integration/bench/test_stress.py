"""Two cases of ``bench.stress`` at a small scale: a full service, and keys that must not mix."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.stress.cases import CASES, run_case

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(("name", "scale"), [("full", 0.2), ("isolation", 0.2)])
def test_every_target_is_reached_that_no_speed_decides(
    name: str, scale: float, tmp_path: Path
) -> None:
    case = next(one for one in CASES if one.name == name)
    outcome = run_case(case, tmp_path, scale=scale)
    missed = [one for one in outcome.checks if not one.reached and not one.timed]
    assert not missed
