"""What the figures of a run depend on besides the service, and whether the machine is quiet."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

#: Percent of all processors that other programs may use.
BUSY_PERCENT_MAX: Final = 15.0
_LOOK_S: Final = 5.0
_ROOT: Final = Path(__file__).parents[2]


def busy_percent() -> float:
    """Return how much of all processors is used now; nothing of ours may run."""
    return psutil.cpu_percent(interval=_LOOK_S)


def conditions(busy: float) -> dict[str, Any]:
    """Return machine, versions, commit, instant and other load.

    Args:
        busy: Percent of all processors that other programs used before.
    """
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("semantic", "mlx", "mlx-lm")},
        "commit": current_commit(),
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "busy_percent": round(busy, 1),
        "quiet": busy <= BUSY_PERCENT_MAX,
    }


def line_of(found: Mapping[str, Any]) -> str:
    """Return the conditions as one line of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    load = f"other programs used {found['busy_percent']:g} % of the processors"
    mark = "" if found["quiet"] else " **Not quiet: compare ratios only.**"
    return (
        f"{found['at']}, commit `{found['commit']}`: {found['system']}, {found['cores']} cores,"
        f" {found['memory_gb']} GB, Python {found['python']}, {versions}; {load}.{mark}"
    )


def current_commit() -> str:
    """Return the short name of the checked-out commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
