"""What a service manager has to know of ``semantic serve``, without secrets. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.settings import Settings
from ops.supervisor.parts import parts_of

#: Seconds that the service manager waits beyond the drain of all parts before it kills them.
STOP_MARGIN_S = 15
#: Directories that are searched after those of the PATH at the installation.
_SYSTEM_PATH = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "/bin")
_PREFIX = "SEMANTIC_"
#: Variables that select the files; the unit has them as options.
_AS_OPTIONS = frozenset({"SEMANTIC_CONFIG", "SEMANTIC_DATA_DIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUnit:
    """One installed service.

    Attributes:
        argv: The command; it must not fork.
        home: Working directory.
        search_path: ``PATH`` of the service, which leads to ``redis-server``.
        log_dir: Directory of log files, where the service manager keeps no log of its own.
        stop_s: Seconds from SIGTERM to SIGKILL.
    """

    argv: tuple[str, ...]
    home: Path
    search_path: str
    log_dir: Path
    stop_s: int


def unit_of(settings: Settings, *, home: Path, search_path: str) -> MachineUnit:
    """Return the service for these settings.

    Values from environment variables are not copied, since they may be keys.

    Args:
        settings: The settings; the file and the data directory are named in the command.
        home: Home directory of the user.
        search_path: ``PATH`` at the installation.
    """
    options = ["--data-dir", str(settings.data_dir.expanduser().absolute())]
    if settings.config is not None:
        options += ["--config", str(settings.config.expanduser().absolute())]
    directories = dict.fromkeys([*filter(None, search_path.split(":")), *_SYSTEM_PATH])
    drain_s = sum(part.grace_s for part in parts_of(settings).last_to_first())
    return MachineUnit(
        argv=(*_program(), "serve", *options),
        home=home,
        search_path=":".join(directories),
        log_dir=log_dir_of(home),
        stop_s=int(drain_s) + STOP_MARGIN_S,
    )


def log_dir_of(home: Path) -> Path:
    """Return where launchd writes the output of the service."""
    return home / "Library" / "Logs" / "semantic"


def left_out(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of variables that set something now and are not part of the service."""
    names = (name for name in environment if name.upper().startswith(_PREFIX))
    return tuple(sorted(name for name in names if name.upper() not in _AS_OPTIONS))


def _program() -> tuple[str, ...]:
    script = Path(sys.executable).with_name("semantic")
    return (str(script),) if script.is_file() else (sys.executable, "-P", "-m", "ops.cli.main")
