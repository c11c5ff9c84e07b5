"""The option ``--config`` of each command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Read this file of settings before your own.", metavar="FILE"),
]
_GIVEN: Final[ContextVar[Path | None]] = ContextVar("config file", default=None)


def given_config_file() -> Path | None:
    """Return the file that the command line names."""
    return _GIVEN.get()


@contextmanager
def use_config_file(path: Path | None) -> Iterator[None]:
    """Let ``given_config_file`` return this file; ``None`` changes nothing."""
    if path is None:
        yield
        return
    token = _GIVEN.set(path)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def add_config_option(app: typer.Typer) -> None:
    """Add ``--config`` to each command of an application."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_option(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_config_option(group.typer_instance)


def _with_option(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*, config: Path | None = None, **given: Any) -> Any:  # noqa: ANN401 - as typer calls it
        with use_config_file(config):
            return function(**given)

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile
    )
    parameters = [*signature.parameters.values(), option]
    command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {**function.__annotations__, "config": ConfigFile}
    return command
