"""A server of others with the BLAS of the service.

python -m bench.on_openblas MODULE:FUNCTION …
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

from bench.blas import measured_blas


def main() -> None:
    """Choose the BLAS, print it, and serve with the other arguments."""
    print(json.dumps(measured_blas()), flush=True)
    module, _, function = sys.argv.pop(1).partition(":")
    getattr(import_module(module), function)()


if __name__ == "__main__":
    main()
