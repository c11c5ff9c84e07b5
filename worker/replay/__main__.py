"""``python -m worker.replay``: compute recorded answers again; see ``replayer``."""

from __future__ import annotations

import sys

from worker.replay.replayer import main

if __name__ == "__main__":
    sys.exit(main())
