"""The service as a launchd agent of the user. Pure."""

from __future__ import annotations

import plistlib
from pathlib import Path

from ops.supervisor.machine.unit import MachineUnit

LABEL = "local.semantic"
#: Least seconds between two starts. launchd treats all exit codes but 0 alike, so a service whose
#: settings cannot work (78) is tried again at this interval.
THROTTLE_S = 30
LOG_NAME = "serve.jsonl"


def render(unit: MachineUnit) -> bytes:
    """Return the property list."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(unit.argv),
            "WorkingDirectory": str(unit.home),
            "EnvironmentVariables": {"PATH": unit.search_path},
            "RunAtLoad": True,
            # Exit code 0 is a wanted end; the supervisor itself restarts the parts.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": THROTTLE_S,
            "ExitTimeOut": unit.stop_s,
            "ProcessType": "Interactive",
            "StandardOutPath": str(unit.log_dir / "serve.log"),
            "StandardErrorPath": str(unit.log_dir / LOG_NAME),
        }
    )


def path_of(home: Path) -> Path:
    """Return where the property list belongs."""
    return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
