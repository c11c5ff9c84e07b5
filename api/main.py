"""``python -m api.main``: imports the api process and runs it."""

from __future__ import annotations

import sys

from ops.exit_codes import ExitCode
from ops.liveness.child import resting_collector, wait_for_activation


def main() -> int:
    """Run the api until SIGTERM, SIGINT or the end of its supervisor; return the exit code."""
    with resting_collector():
        from api.framework.composition import main as run_api  # noqa: PLC0415 - imported in this block
    return run_api() if wait_for_activation() else int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
