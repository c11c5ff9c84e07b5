"""``python -m worker.standby``: a worker that imports first and works once it is activated.

Imports take nine tenths of a worker's start. A standby has them behind it. It holds no lock, no
model, no connection and no memory of a GPU: it does not import MLX before its activation.
"""

from __future__ import annotations

from ops.exit_codes import end_process
from worker.main import main

if __name__ == "__main__":
    end_process(main())
