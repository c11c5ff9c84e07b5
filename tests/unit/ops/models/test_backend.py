"""What MLX computes on, read from the installed packages."""

from __future__ import annotations

import importlib.metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ops.models import backend
from ops.models.backend import (
    clashing_backends,
    installed_backends,
    missing_backend,
    slow_blas,
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the installed packages, none at first; MLX itself has no library."""
    names: set[str] = set()
    spec = ModuleSpec("mlx", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]

    def version(name: str) -> str:
        if name not in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(backend, "version", version)
    monkeypatch.setattr(backend, "find_spec", lambda _: spec)
    return names


def test_the_message_of_an_installation_without_a_backend_names_the_extras(
    installed: set[str],
) -> None:
    installed.add("mlx")
    assert "'mlx[cpu]'" in (missing_backend() or "")
    assert installed_backends() == ()


def test_one_backend_is_fine(installed: set[str]) -> None:
    installed.update({"mlx", "mlx-cuda-13"})
    assert missing_backend() is None
    assert clashing_backends(installed_backends()) is None


def test_a_build_from_source_has_the_library_itself(installed: set[str], tmp_path: Path) -> None:
    assert not installed
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmlx.so").touch()
    assert missing_backend() is None


def test_two_backends_have_the_same_files(installed: set[str]) -> None:
    installed.update({"mlx", "mlx-cpu", "mlx-cuda-12"})
    found = clashing_backends(installed_backends())
    assert found is not None
    assert "mlx-cuda-12 and mlx-cpu" in found


def test_this_environment_has_one_backend() -> None:
    assert missing_backend() is None
    assert clashing_backends(installed_backends()) is None


def test_a_cpu_without_openblas_is_slow(installed: set[str]) -> None:
    installed.add("mlx-cpu")
    assert "pip install scipy-openblas32" in (slow_blas(installed_backends()) or "")
    installed.add("scipy-openblas32")
    assert slow_blas(installed_backends()) is None


def test_a_gpu_needs_no_openblas(installed: set[str]) -> None:
    installed.add("mlx-cuda-13")
    assert slow_blas(installed_backends()) is None
