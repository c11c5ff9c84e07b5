"""What MLX compiles in one run of the tests is there in the next."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import mlx.core as mx
import pytest

from tests.support.models.kept_kernels import compiled, keep, take
from worker.engine.mlx.cpu import computes_on_cpu


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of a run of its own, for MLX too."""
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


def _kernels(directory: Path) -> list[str]:
    return sorted(str(one.relative_to(directory)) for one in directory.rglob("*.so"))


@pytest.mark.skipif(
    not computes_on_cpu() or shutil.which("g++") is None, reason="MLX compiles with g++ on a CPU"
)
def test_whole_kernels_are_kept_for_the_next_run(temporary: Path, tmp_path: Path) -> None:
    function = mx.compile(lambda x: mx.exp(x) * 3 + mx.sin(x) / 7)
    mx.eval(function(mx.arange(5.0)))
    (made,) = compiled().rglob("*.so")
    cut = made.with_name("libcut.so")
    cut.write_bytes(made.read_bytes()[:1000])
    kept = tmp_path / "kept"
    keep(kept)
    assert _kernels(kept) == [str(made.relative_to(compiled()))]
    shutil.rmtree(temporary)
    temporary.mkdir()
    take(kept)
    assert _kernels(compiled()) == _kernels(kept)
    assert made.read_bytes()


def test_first_run_has_none(temporary: Path, tmp_path: Path) -> None:
    take(tmp_path / "kept")
    assert list(temporary.iterdir()) == []
