"""Installs, removes and shows the service through ``launchctl`` or ``systemctl``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ops.supervisor.machine import launchd, systemd
from ops.supervisor.machine.unit import MachineUnit

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
        message = f"{argv[0]} is not installed on this machine"
        raise ManagerFailed(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineService:
    """The installed service of one user.

    Attributes:
        manager: The service manager.
        home: Home directory of the user.
        run: Runs a command of the service manager.
        user_id: Number of the user.
    """

    manager: Manager
    home: Path
    run: Run = run_command
    user_id: int = os.getuid()

    @property
    def path(self) -> Path:
        """The file of the service."""
        if self.manager is Manager.LAUNCHD:
            return launchd.path_of(self.home)
        return systemd.path_of(self.home)

    def render(self, unit: MachineUnit) -> bytes:
        """Return the contents of the file."""
        if self.manager is Manager.LAUNCHD:
            return launchd.render(unit)
        return systemd.render(unit).encode()

    def install_commands(self) -> tuple[tuple[str, ...], ...]:
        """Return the commands that load a new file and start the service."""
        if self.manager is Manager.LAUNCHD:
            return (("launchctl", "bootstrap", self._domain, str(self.path)),)
        return (
            ("systemctl", "--user", "daemon-reload"),
            ("systemctl", "--user", "enable", systemd.UNIT),
            ("systemctl", "--user", "restart", systemd.UNIT),
        )

    def stop_command(self) -> tuple[str, ...]:
        """Return the command that stops the service for good."""
        if self.manager is Manager.LAUNCHD:
            return ("launchctl", "bootout", f"{self._domain}/{launchd.LABEL}")
        return ("systemctl", "--user", "disable", "--now", systemd.UNIT)

    def is_running(self) -> bool:
        """Return whether the service manager runs the service."""
        if self.manager is Manager.LAUNCHD:
            return self.run(("launchctl", "print", f"{self._domain}/{launchd.LABEL}")) == 0
        return self.run(("systemctl", "--user", "is-active", "--quiet", systemd.UNIT)) == 0

    def install(self, unit: MachineUnit) -> bool:
        """Write the file and start the service; return ``False`` if it runs as wanted already.

        Raises:
            ManagerFailed: A command failed; the file is in place.
            OSError: The file cannot be written.
        """
        wanted = self.render(unit)
        is_same = self.path.exists() and self.path.read_bytes() == wanted
        is_running = self.is_running()
        if is_same and is_running:
            return False
        if self.manager is Manager.LAUNCHD:
            unit.log_dir.mkdir(parents=True, exist_ok=True)
            if is_running:
                self.run(self.stop_command())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_bytes(wanted)
        fresh.replace(self.path)
        for command in self.install_commands():
            self._require(command)
        return True

    def uninstall(self) -> bool:
        """Stop the service and remove its file; return ``False`` if it is not installed.

        Raises:
            ManagerFailed: The service manager is not installed.
        """
        if not self.path.exists():
            return False
        self.run(self.stop_command())
        self.path.unlink()
        if self.manager is Manager.SYSTEMD:
            self.run(("systemctl", "--user", "daemon-reload"))
        return True

    @property
    def _domain(self) -> str:
        return f"gui/{self.user_id}"

    def _require(self, command: Sequence[str]) -> None:
        code = self.run(command)
        if code:
            message = f"{' '.join(command)} failed with exit code {code}"
            raise ManagerFailed(message)
