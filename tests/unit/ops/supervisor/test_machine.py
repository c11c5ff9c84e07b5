"""Installing and removing the service: which files are written, which commands run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.settings.settings import Settings
from ops.supervisor.machine import (
    MachineService,
    MachineUnit,
    Manager,
    ManagerFailed,
    run_command,
    unit_of,
)


class Commands:
    """Stands in for the commands of a service manager, and remembers them."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.running = False
        self.failing: str | None = None

    def __call__(self, argv: Sequence[str]) -> int:
        line = " ".join(argv)
        if "is-active" in line or "launchctl print" in line:
            return 0 if self.running else 3
        self.ran.append(line)
        if self.failing is not None and self.failing in line:
            return 5
        if "restart" in line or "bootstrap" in line:
            self.running = True
        if "disable" in line or "bootout" in line:
            self.running = False
        return 0


@pytest.fixture
def commands() -> Commands:
    return Commands()


def _service(home: Path, manager: Manager, commands: Commands) -> MachineService:
    return MachineService(manager=manager, home=home, run=commands, user_id=501)


def _unit(home: Path, **settings: object) -> MachineUnit:
    given = Settings(data_dir=home / "my data", **settings)  # type: ignore[arg-type]  # pydantic checks
    return unit_of(given, home=home, search_path="/usr/bin")


def test_systemd_unit_is_installed_once(tmp_path: Path, commands: Commands) -> None:
    service = _service(tmp_path, Manager.SYSTEMD, commands)
    assert service.install(_unit(tmp_path))
    assert service.path.read_text() == service.render(_unit(tmp_path))
    assert commands.ran == [
        "systemctl --user daemon-reload",
        "systemctl --user enable semantic.service",
        "systemctl --user restart semantic.service",
    ]
    commands.ran.clear()
    assert not service.install(_unit(tmp_path))
    assert commands.ran == []
    assert service.install(_unit(tmp_path, server={"drain_s": 99}))
    assert b"TimeoutStopSec=" in service.path.read_bytes()
    assert len(commands.ran) == 3
    assert service.uninstall()
    assert not service.path.exists()
    assert not service.is_running()
    assert not service.uninstall()


def test_launchd_agent_is_loaded_again_after_a_change(tmp_path: Path, commands: Commands) -> None:
    service = _service(tmp_path, Manager.LAUNCHD, commands)
    load = f"launchctl bootstrap gui/501 {service.path}"
    unload = "launchctl bootout gui/501/local.semantic"
    assert service.install(_unit(tmp_path))
    assert not service.install(_unit(tmp_path))
    assert service.install(_unit(tmp_path, server={"drain_s": 99}))
    assert commands.ran == [load, unload, load]
    assert _unit(tmp_path).log_dir.is_dir()
    assert service.uninstall()
    assert commands.ran[-1] == unload


@pytest.mark.parametrize(("manager", "step"), [("systemd", "enable"), ("launchd", "bootstrap")])
def test_command_that_fails_is_named_and_a_repeat_completes(
    tmp_path: Path, commands: Commands, manager: str, step: str
) -> None:
    service = _service(tmp_path, Manager(manager), commands)
    commands.failing = step
    with pytest.raises(ManagerFailed, match=step):
        service.install(_unit(tmp_path))
    commands.failing = None
    assert service.install(_unit(tmp_path))
    assert service.is_running()


def test_manager_that_is_missing_is_named() -> None:
    with pytest.raises(ManagerFailed, match="no-such-manager is not installed"):
        run_command(["no-such-manager", "status"])


def test_platform_decides_about_the_manager() -> None:
    assert Manager.of("darwin") is Manager.LAUNCHD
    assert Manager.of("linux") is Manager.SYSTEMD
