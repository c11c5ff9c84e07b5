"""Which BLAS a contender computes with, and how fast; ``python -m bench.blas`` prints it as JSON.

``python -m bench.blas MODULE:FUNCTION …`` then runs a server of others with it. Each contender of a
comparison calls ``measured_blas`` before its model is loaded, so all of them multiply with the
library that the service chooses.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any, Final

import mlx.core as mx

from worker.engine.mlx.cpu import computes_on_cpu, use_openblas

#: Rows and columns of the product: the weights of a layer of some 100 million parameters.
_SIZE: Final = 1024
_PRODUCTS: Final = 5


def blas_threads() -> int:
    """Return the threads that OpenBLAS takes in a service with these variables."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return int(os.environ.get("OPENBLAS_NUM_THREADS", max(1, cores - 1)))


def measured_blas() -> dict[str, Any]:
    """Use OpenBLAS as the service does, and return library, threads and GFLOPS of this process."""
    is_openblas = use_openblas()
    on_cpu = computes_on_cpu()
    library = "OpenBLAS" if is_openblas else "that of mlx-cpu, or preloaded" if on_cpu else "MLX's"
    return {"library": library, "threads": blas_threads(), "gflops": round(_gflops(), 1)}


def _gflops() -> float:
    """Return the speed of the best of some products in float32."""
    left, right = mx.random.normal((_SIZE, _SIZE)), mx.random.normal((_SIZE, _SIZE))
    mx.eval(left, right)
    best_s = float("inf")
    for _ in range(_PRODUCTS):
        begin = time.perf_counter()
        mx.eval(left @ right)
        best_s = min(best_s, time.perf_counter() - begin)
    return 2 * _SIZE**3 / best_s / 1e9


def main() -> None:
    """Choose the BLAS, print it, and serve with the other arguments if there are any."""
    print(json.dumps(measured_blas()), flush=True)
    if sys.argv[1:]:
        module, _, function = sys.argv.pop(1).partition(":")
        getattr(import_module(module), function)()


if __name__ == "__main__":
    main()
