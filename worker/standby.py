"""``python -m worker.standby``: a worker that imports first and works once it is activated.

Imports take nine tenths of a worker's start. A standby has them behind it. It holds no lock, no
model, no connection and no memory of a GPU: it does not import MLX before its activation.
"""

from __future__ import annotations

from ops.exit_codes import ExitCode, end_process
from ops.liveness.child import wait_for_activation
from worker.main import main as run_worker
from worker.main import preload


def main() -> int:
    """Preload, wait for the activation and run a worker; return the exit code."""
    preload()
    return run_worker() if wait_for_activation() else int(ExitCode.OK)


if __name__ == "__main__":
    end_process(main())
