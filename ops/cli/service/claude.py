"""``semantic claude``: Claude Code on the running service."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ops.cli.client import access_or_exit, service
from ops.cli.options import DataDir, fail
from ops.cli.output import echo
from ops.clients.claude_code import (
    KEY_VARIABLE,
    NO_KEY,
    UNSET,
    ServedModel,
    arguments,
    environment,
    key_variable,
    shell_lines,
)
from ops.exit_codes import ExitCode

_INSTALL = "npm install -g @anthropic-ai/claude-code"

PrintEnv = Annotated[
    bool, typer.Option("--print-env", help="Print lines to paste into a shell, start nothing.")
]
Binary = Annotated[
    str, typer.Option("--claude", help="The program to start, if it is not claude on the PATH.")
]


def claude(
    context: typer.Context,
    print_env: PrintEnv = False,
    binary: Binary = "claude",
    data_dir: DataDir = None,
) -> None:
    """Start Claude Code on the running service; all other arguments are passed to it.

    It receives the address, a name that follows the loaded model, and that model's limits, for
    this session. Your settings and login stay as they are.

    Examples: semantic claude; semantic claude -p "What does this project do?"; semantic claude -c
    """
    base_url, (model, *_) = served(data_dir)
    key = access_or_exit(data_dir).own_key
    if print_env:
        token = NO_KEY if key is None else KEY_VARIABLE
        for line in shell_lines(environment(base_url, model, token=token)):
            echo(line)
        return
    variables = environment(base_url, model)
    program = shutil.which(binary)
    if program is None:
        fail(f"there is no program {binary}; install it: {_INSTALL}", ExitCode.FAILED)
    inherited = {name: value for name, value in os.environ.items() if name not in UNSET}
    secret = {} if key is None else key_variable(key, inherited)
    if isinstance(context.obj, int):
        os.umask(context.obj)  # what Claude Code writes is the user's
    become(program, arguments(context.args, variables, model), inherited | variables | secret)


def served(data_dir: Path | None) -> tuple[str, tuple[ServedModel, ...]]:
    """Return the URL of the service and its models, at least one, the loaded one first."""
    with service(data_dir) as client:
        models = ServedModel.all_of(client.ask("GET", "/admin/models"))
        if not models:
            fail("the service has no model yet; see: semantic status", ExitCode.FAILED)
    return client.base_url, models


def become(program: str, words: list[str], variables: dict[str, str]) -> NoReturn:
    """Replace this process by the program, so that it owns the terminal and signals."""
    sys.stdout.flush()
    os.execve(program, [program, *words], variables)  # noqa: S606 - the user asked for it
