"""``semantic serve``, and the parts alone: ``api``, ``worker``, ``broker``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import typer

from ops.cli.exit_codes import ExitCode
from ops.cli.options import AllowRemote, DataDir, Host, Model, Port, operator_settings, overrides
from ops.cli.output import echo
from ops.liveness.imports import resting_collector
from ops.models.choice import choice_environment


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel="Serve")(serve)
    app.command(rich_help_panel="Serve")(api)
    app.command(rich_help_panel="Serve")(worker)
    app.command(rich_help_panel="Serve")(broker)


def serve(
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
    settings = operator_settings(given)
    with resting_collector():
        from ops.supervisor.serve import serve as run_service  # noqa: PLC0415 - keeps --help fast
    raise typer.Exit(int(run_service(settings, is_explicit=model is not None)))


def api(
    model: Model = None,
    port: Port = None,
    host: Host = None,
    allow_remote: AllowRemote = None,
    data_dir: DataDir = None,
) -> None:
    """Run the api alone; broker and worker run elsewhere."""
    given = overrides(
        data_dir=data_dir, model=model, host=host, port=port, allow_remote=allow_remote
    )
    _become("api.main", given)


def worker(model: Model = None, data_dir: DataDir = None) -> None:
    """Run the worker alone; broker and api run elsewhere."""
    from ops.models.backend import missing_backend  # noqa: PLC0415 - keeps --help fast

    if (missing := missing_backend()) is not None:
        echo(f"semantic: {missing}", err=True)
        raise typer.Exit(int(ExitCode.CONFIG))
    given = overrides(data_dir=data_dir, model=model)
    _become("worker.main", given, choice_environment(is_explicit=model is not None))


def broker(data_dir: DataDir = None) -> None:
    """Run the private broker alone."""
    _become("ops.broker", overrides(data_dir=data_dir))


def _become(
    module: str, given: dict[str, Any], further: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Replace this process by a part; ``ops`` must not import ``api`` or ``worker``."""
    settings = operator_settings(given)
    from ops.supervisor.environment import child_environment  # noqa: PLC0415 - keeps --help fast
    from ops.supervisor.parts import module_argv  # noqa: PLC0415 - the same

    sys.stdout.flush()
    argv = module_argv(module)
    os.execve(argv[0], argv, child_environment(os.environ, settings, further))  # noqa: S606 - that is the point
