"""Which backends of MLX are installed; MLX itself is not imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

#: Packages with a backend, and the device that each of them computes on.
BACKENDS: Final = MappingProxyType(
    {
        "mlx-metal": "the GPU (Metal)",
        "mlx-cuda-12": "the GPU (CUDA 12)",
        "mlx-cuda-13": "the GPU (CUDA 13)",
        "mlx-cpu": "the CPU",
    }
)
#: OpenBLAS, which the extra ``cpu`` installs beside ``mlx-cpu``.
_OPENBLAS: Final = "scipy-openblas32"
#: The library that each of these packages has, and that a build of MLX from its source has too.
_LIBRARY: Final = "lib/libmlx.*"


def installed_backends() -> tuple[str, ...]:
    """Return the names of the installed backend packages."""
    return tuple(name for name in BACKENDS if _is_installed(name))


def missing_backend() -> str | None:
    """Return what to install where MLX has no backend, ``None`` if it has one."""
    if installed_backends() or _has_library():
        return None
    return "MLX has no backend here: pip install 'mlx[cpu]', 'mlx[cuda12]' or 'mlx[cuda13]'"


def clashing_backends(backends: Sequence[str]) -> str | None:
    """Return what is wrong with several backends in one environment, ``None`` with one or none."""
    if len(backends) <= 1:
        return None
    names = " and ".join(backends)
    return f"{names} have the same files: install with one of the extras cpu, cuda12 and cuda13"


def slow_blas(backends: Sequence[str]) -> str | None:
    """Return what to install where MLX computes on a CPU with a slow BLAS, ``None`` elsewhere."""
    if "mlx-cpu" not in backends or _is_installed(_OPENBLAS):
        return None
    return f"its matrices are multiplied slowly: pip install {_OPENBLAS}"


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _has_library() -> bool:
    spec = find_spec("mlx")
    places = (
        [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    )
    return any(True for place in places for _ in place.glob(_LIBRARY))
