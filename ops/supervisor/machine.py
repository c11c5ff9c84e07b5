"""The service of launchd or systemd that runs ``semantic serve``, without secrets."""

from __future__ import annotations

import os
import plistlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ops.data_dir.permissions import replace_file
from ops.exit_codes import FINAL
from ops.settings.settings import Settings
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


LABEL = "local.semantic"
#: Least seconds between two starts. launchd treats all exit codes but 0 alike, so a service whose
#: settings cannot work (78) is tried again at this interval.
THROTTLE_S = 30
LOG_NAME = "serve.jsonl"


def launchd_file(unit: MachineUnit) -> bytes:
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


UNIT = "semantic.service"
_SYSTEMCTL = ("systemctl", "--user")
#: Seconds between the end of the service and its next start.
SYSTEMD_RESTART_S = 5


def systemd_file(unit: MachineUnit) -> str:
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
            f"RestartSec={SYSTEMD_RESTART_S}",
            # The supervisor alone gets SIGTERM, and drains the parts in their order. If it is
            # killed, the parts go on until the next one takes over.
            "KillMode=process",
            f"TimeoutStopSec={unit.stop_s}",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def quoted(word: str, *, in_command: bool = True) -> str:
    """Return a word as systemd reads it back; see systemd.service(5), command lines.

    Args:
        word: Without line breaks.
        in_command: Whether ``$`` begins a variable at that place.

    Raises:
        ValueError: The word has a character that a unit file cannot hold.
    """
    if any(ord(character) < ord(" ") for character in word):
        raise ValueError(f"a path with a control character cannot be installed: {word!r}")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if in_command:
        escaped = escaped.replace("$", "$$")
    return f'"{escaped}"'


def _unit_path(path: Path) -> str:
    quoted(str(path))  # raises for a path that cannot be written
    return str(path).replace("%", "%%")


Run = Callable[[Sequence[str]], int]


class Manager(StrEnum):
    """The service manager of a machine."""

    LAUNCHD = "launchd"
    SYSTEMD = "systemd"

    @classmethod
    def of(cls, platform: str) -> Manager:
        """Return the service manager of a platform (``sys.platform``)."""
        return cls.LAUNCHD if platform == "darwin" else cls.SYSTEMD


class ManagerFailed(Exception):
    """A command of the service manager failed; the message names it."""


def run_command(argv: Sequence[str]) -> int:
    """Run a command of the service manager and return its exit code.

    Raises:
        ManagerFailed: The command does not exist.
    """
    try:
        return subprocess.run(argv, check=False, capture_output=True).returncode
    except FileNotFoundError as error:
        raise ManagerFailed(f"{argv[0]} is not installed on this machine") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineService:
    """The installed service of one user."""

    manager: Manager
    home: Path
    run: Run = run_command
    user_id: int = os.getuid()

    @property
    def path(self) -> Path:
        """The file of the service."""
        if self.manager is Manager.LAUNCHD:
            return self.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        return self.home / ".config" / "systemd" / "user" / UNIT

    def render(self, unit: MachineUnit) -> str:
        """Return the contents of the file."""
        if self.manager is Manager.LAUNCHD:
            return launchd_file(unit).decode()
        return systemd_file(unit)

    def install_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that load a new file and start the service."""
        if self.manager is Manager.LAUNCHD:
            return (("launchctl", "bootstrap", self._domain, str(self.path)),)
        steps = (("daemon-reload",), ("enable", UNIT), ("restart", UNIT))
        return tuple((*_SYSTEMCTL, *step) for step in steps)

    def _run(self, on_launchd: str, *on_systemd: str) -> int:
        """Run the command of the service manager; return its exit code."""
        if self.manager is Manager.LAUNCHD:
            return self.run(("launchctl", on_launchd, f"{self._domain}/{LABEL}"))
        return self.run((*_SYSTEMCTL, *on_systemd, UNIT))

    def _stop(self) -> None:
        """Stop the service for good."""
        self._run("bootout", "disable", "--now")

    def is_running(self) -> bool:
        """Return whether the service manager runs the service."""
        return self._run("print", "is-active", "--quiet") == 0

    def install(self, unit: MachineUnit) -> bool:
        """Write the file and start the service; return ``False`` if it runs as wanted already.

        Raises:
            ManagerFailed: A command failed; the file is in place.
        """
        wanted = self.render(unit)
        is_same = self.path.exists() and self.path.read_bytes() == wanted.encode()
        is_running = self.is_running()
        if is_same and is_running:
            return False
        if self.manager is Manager.LAUNCHD:
            unit.log_dir.mkdir(parents=True, exist_ok=True)
            if is_running:
                self._stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, wanted)
        for command in self.install_commands():
            if code := self.run(command):
                raise ManagerFailed(f"{' '.join(command)} failed with exit code {code}")
        return True

    def uninstall(self) -> bool:
        """Stop the service and remove its file; return ``False`` if it is not installed.

        Raises:
            ManagerFailed: The service manager is not installed.
        """
        if not self.path.exists():
            return False
        self._stop()
        self.path.unlink()
        if self.manager is Manager.SYSTEMD:
            self.run((*_SYSTEMCTL, "daemon-reload"))
        return True

    @property
    def _domain(self) -> str:
        return f"gui/{self.user_id}"
