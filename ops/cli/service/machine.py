"""``semantic service``: the service of launchd or systemd that runs ``semantic serve``."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import echo, print_json, print_pairs
from ops.exit_codes import ExitCode
from ops.supervisor.machine import (
    MachineService,
    MachineUnit,
    Manager,
    ManagerFailed,
    left_out,
    unit_of,
)

ManagerOption = Annotated[
    str | None,
    typer.Option("--manager", help="launchd or systemd; default: that of this machine."),
]


def install(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the file and the commands; change nothing.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Stop the service and remove it; the data stays.")
    ] = False,
    manager: ManagerOption = None,
    data_dir: DataDir = None,
) -> None:
    """Install and start the service of this user; a repeated call changes nothing.

    The file names the data directory and the file of --config. Values of environment
    variables are not copied, since they may be keys.
    """
    service, unit = _service(manager, data_dir)
    if undo:
        try:
            was_installed = service.uninstall()
        except (ManagerFailed, OSError) as error:
            fail(f"the service is not removed: {error}", ExitCode.FAILED)
        echo("removed" if was_installed else "not installed")
        return
    if names := left_out(os.environ):
        echo(f"semantic: not part of the service: {', '.join(names)}", err=True)
    if dry_run:
        echo(f"# {service.path}")
        echo(service.render(unit))
        for command in service.install_commands():
            echo(f"$ {shlex.join(command)}")
        return
    try:
        is_new = service.install(unit)
    except (ManagerFailed, OSError, ValueError) as error:
        fail(f"the service is not installed: {error}", ExitCode.FAILED)
    echo(f"{'installed' if is_new else 'installed already'}: {service.path}")
    if service.manager is Manager.SYSTEMD:
        echo("to start it without a login: loginctl enable-linger")


def status(json: Json = False, manager: ManagerOption = None, data_dir: DataDir = None) -> None:
    """Show whether the service is installed and runs; exits with 0 if it runs, else with 3."""
    service, _ = _service(manager, data_dir)
    try:
        is_running = service.is_running()
    except ManagerFailed:
        is_running = False
    report = {
        "manager": service.manager.value,
        "file": str(service.path),
        "installed": service.path.exists(),
        "running": is_running,
    }
    if json:
        print_json(report)
    else:
        print_pairs([(name, str(value)) for name, value in report.items()])
    if not is_running:
        raise typer.Exit(int(ExitCode.NOT_RUNNING))


def _service(manager: str | None, data_dir: Path | None) -> tuple[MachineService, MachineUnit]:
    settings = settings_or_exit(overrides(data_dir=data_dir))
    try:
        chosen = Manager.of(sys.platform) if manager is None else Manager(manager)
    except ValueError:
        fail(f"no such service manager: {manager}", ExitCode.USAGE)
    home = Path.home()
    unit = unit_of(settings, home=home, search_path=os.environ.get("PATH", ""))
    return MachineService(manager=chosen, home=home), unit


#: The commands of the group, by name.
COMMANDS: Final = {"install": install, "status": status}
