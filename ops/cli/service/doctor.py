"""``semantic doctor``: check the preconditions of a start."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import Annotated

import typer

from ops.cli.client import access_of, client_of, health_of
from ops.cli.exit_codes import ExitCode
from ops.cli.options import (
    DataDir,
    Host,
    Json,
    Model,
    Port,
    directory_file,
    overrides,
    settings_or_exit,
)
from ops.cli.output import echo, print_table

#: Time limit of the running service's answer, in seconds.
ANSWER_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Look")(doctor)


def doctor(
    model: Model = None,
    port: Port = None,
    host: Host = None,
    mend: Annotated[
        bool, typer.Option("--mend", help="Close the service's files to other users first.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Check Python, the database, the broker, MLX, the data directory, the port and the model.

    Where the service runs, the reasons of its health are added. Exits with 1 if
    a check would prevent a start; warnings do not count.
    """
    given = overrides(data_dir=data_dir, model=model, host=host, port=port)
    added, ignored = directory_file(given)
    settings = settings_or_exit(given | added)
    # All keep --help fast.
    from ops.adapters.data_dir.permissions import tighten  # noqa: PLC0415
    from ops.cli.service.checks import all_checks, check_files, check_health  # noqa: PLC0415
    from ops.cli.service.origins import files_in_use  # noqa: PLC0415
    from ops.supervisor.serve_record import read_record  # noqa: PLC0415

    if mend:
        tighten(settings.data_dir)
    checks = [check_files(files_in_use(given | added), ignored), *all_checks(settings)]
    if read_record(settings.data_dir) is not None:
        checks += check_health(health_of(client_of(access_of(settings), answer_s=ANSWER_S)))
    fine = all(check.verdict != "fail" for check in checks)
    if json:
        report = {"ok": fine, "checks": [asdict(check) for check in checks]}
        echo(jsonlib.dumps(report, indent=2))
    else:
        rows = [(check.verdict, check.name, check.detail) for check in checks]
        print_table(("", "check", "found"), rows)
    if not fine:
        raise typer.Exit(int(ExitCode.FAILED))
