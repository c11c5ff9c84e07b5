"""``python -m worker.plan``: plan the memory of a model; see ``planner``."""

from __future__ import annotations

import sys

from worker.plan.planner import main

if __name__ == "__main__":
    sys.exit(main())
