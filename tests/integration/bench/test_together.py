"""``bench.together`` with its real contenders, on the demo model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.together.cells import RIVAL, US
from bench.together.contenders import RAW

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.nightly


def test_every_contender_answers_the_same_requests(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    sizes = ["--rounds", "1", "--streams", "2", "--tokens", "6", "--kinds", "prose", "--json"]
    command = [sys.executable, "-m", "bench.together", *sizes, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text(encoding="utf-8"))["figures"]
    new, known = (cell["rounds"] for cell in found["cells"])
    assert set(new) == {US, RIVAL, RAW}
    assert set(known) == {US, RIVAL}
    assert known[US][0]["cached_tokens"] > 0
    blas = {(one["library"], one["threads"]) for one in found["conditions"]["blas"].values()}
    assert len(blas) == 1
