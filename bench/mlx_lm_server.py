"""mlx_lm.server with the BLAS of the service: ``python -m bench.mlx_lm_server --model DIR …``."""

from __future__ import annotations

import json

from mlx_lm.server import main as serve

from bench.blas import measured_blas


def main() -> None:
    """Choose the BLAS, print it, and serve."""
    print(json.dumps(measured_blas()), flush=True)
    serve()


if __name__ == "__main__":
    main()
