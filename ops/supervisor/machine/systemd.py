"""The service as a systemd unit of the user. Pure."""

from __future__ import annotations

from pathlib import Path

from ops.exit_codes import FINAL
from ops.supervisor.machine.unit import MachineUnit

UNIT = "semantic.service"
#: Seconds between the end of the service and its next start.
RESTART_S = 5


def render(unit: MachineUnit) -> str:
    """Return the unit file."""
    return "\n".join(
        [
            "[Unit]",
            "Description=semantic: a local language model for many agents",
            "",
            "[Service]",
            "Type=exec",
            "ExecStart=" + " ".join(quoted(word) for word in unit.argv),
            f"WorkingDirectory={_unit_path(unit.home)}",
            f"Environment={quoted('PATH=' + unit.search_path, in_command=False)}",
            # The supervisor restarts its parts; unusable settings and a damaged log stay so.
            "Restart=on-failure",
            "RestartPreventExitStatus=" + " ".join(f"{code:d}" for code in FINAL),
            f"RestartSec={RESTART_S}",
            # The supervisor alone gets SIGTERM, and drains the parts in their order.
            "KillMode=mixed",
            f"TimeoutStopSec={unit.stop_s}",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def path_of(home: Path) -> Path:
    """Return where the unit file belongs."""
    return home / ".config" / "systemd" / "user" / UNIT


def quoted(word: str, *, in_command: bool = True) -> str:
    """Return a word as systemd reads it back; see systemd.service(5), command lines.

    Args:
        word: Without line breaks.
        in_command: Whether ``$`` begins a variable at that place.

    Raises:
        ValueError: The word has a character that a unit file cannot hold.
    """
    if any(ord(character) < ord(" ") for character in word):
        message = f"a path with a control character cannot be installed: {word!r}"
        raise ValueError(message)
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if in_command:
        escaped = escaped.replace("$", "$$")
    return f'"{escaped}"'


def _unit_path(path: Path) -> str:
    quoted(str(path))  # raises for a path that cannot be written
    return str(path).replace("%", "%%")
