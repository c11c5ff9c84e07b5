"""``semantic serve``: the whole service, or one of its parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, NoReturn

import typer

from ops.cli.options import AllowRemote, DataDir, Host, Model, Port, operator_settings, overrides
from ops.cli.output import echo
from ops.exit_codes import ExitCode
from ops.liveness.child import resting_collector


class Only(StrEnum):
    """A part that runs alone."""

    API = "api"
    WORKER = "worker"
    BROKER = "broker"


_MODULES: Final[Mapping[Only, str]] = MappingProxyType(
    {Only.API: "api.main", Only.WORKER: "worker.main", Only.BROKER: "ops.broker"}
)


def serve(
    only: Annotated[
        Only | None,
        typer.Option("--only", help="Run this part alone; the others run elsewhere."),
    ] = None,
    model: Model = None,
    port: Port = None,
    host: Host = None,
    allow_remote: AllowRemote = None,
    data_dir: DataDir = None,
) -> None:
    """Run the whole service in the foreground: broker, worker and api."""
    given = overrides(
        data_dir=data_dir, model=model, host=host, port=port, allow_remote=allow_remote
    )
    if only is not None:
        _become(only, given, is_explicit=model is not None)
    settings = operator_settings(given)
    with resting_collector():
        from ops.supervisor.serve import serve as run_service
    raise typer.Exit(int(run_service(settings, is_explicit=model is not None)))


def _become(part: Only, given: dict[str, Any], *, is_explicit: bool) -> NoReturn:
    """Replace this process by a part; ``ops`` must not import ``api`` or ``worker``."""
    from ops.models.backend import missing_backend

    if part is Only.WORKER and (missing := missing_backend()) is not None:
        echo(f"semantic: {missing}", err=True)
        raise typer.Exit(int(ExitCode.CONFIG))
    settings = operator_settings(given)
    from ops.models.registry import choice_environment
    from ops.supervisor.parts import child_environment, module_argv

    further = choice_environment(is_explicit=is_explicit) if part is Only.WORKER else {}
    sys.stdout.flush()
    argv = module_argv(_MODULES[part])
    os.execve(argv[0], argv, child_environment(os.environ, settings, further))  # noqa: S606 - that is the point
