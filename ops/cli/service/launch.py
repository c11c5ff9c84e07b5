"""``semantic launch AGENT``: an agent's program on the running service."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ops.cli.client import access_or_exit, client_of, service
from ops.cli.options import DataDir, fail
from ops.cli.output import echo
from ops.cli.progress import start_watch, status_line
from ops.clients import claude_code
from ops.clients.agents import AGENTS, Start, paste_lines, start_of
from ops.clients.claude_code import KEY_VARIABLE, UNSET, ServedModel
from ops.clients.http_client import HttpClient
from ops.clients.set_up import claude_code_lines
from ops.data_dir.permissions import make_directory, replace_file
from ops.exit_codes import ExitCode

#: In the data directory: the files of the agents.
_DIRECTORY = "clients"

Printed = Annotated[
    bool, typer.Option("--print", help="Print lines to paste into a shell, start nothing.")
]
Program = Annotated[
    str | None, typer.Option("--program", help="The program to start, if it is not on the PATH.")
]


def launch(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help=f"The agent to start: {', '.join(AGENTS)}.")],
    printed: Printed = False,
    program: Program = None,
    data_dir: DataDir = None,
) -> None:
    """Start an agent on the running service; all other arguments are passed to it.

    It receives the address, the model and its limits for this session, in variables and in a file
    of the data directory. Your settings and login stay as they are.

    Examples: semantic launch claude; semantic launch claude -p "What does this project do?";
    semantic launch aider -- --help
    """
    if agent not in AGENTS:
        fail(f"there is no agent {agent}; known are: {', '.join(AGENTS)}", ExitCode.USAGE)
    base_url, models = _served(data_dir)
    access = access_or_exit(data_dir)
    name, key = agent, access.own_key
    directory = str((access.data_dir / _DIRECTORY).absolute())
    if printed:
        for line in _printed(name, base_url, models, directory, context.args, keyed=bool(key)):
            echo(line)
        return
    found = shutil.which(program or AGENTS[name].program)
    if found is None:
        absent = program or AGENTS[name].program
        fail(f"there is no program {absent}; install it: {AGENTS[name].install}", ExitCode.FAILED)
    if name == "claude":
        variables = claude_code.environment(base_url, models[0])
        further = _watched(client_of(access), access.data_dir, context.args)
        words = claude_code.arguments(context.args, variables, models[0], further)
        inherited = {one: value for one, value in os.environ.items() if one not in UNSET}
        secret = {} if key is None else claude_code.key_variable(key, inherited)
        start = Start(found, inherited | variables | secret, words)
    else:
        start = start_of(name, base_url, models, key=key, directory=directory, given=context.args)
        _write(start)
        start = Start(found, {**os.environ, **start.variables}, start.words)
    if isinstance(context.obj, int):
        os.umask(context.obj)  # what the agent writes is the user's
    _become(start)


def _watched(client: HttpClient, data_dir: Path, given: list[str]) -> dict[str, Any]:
    """Show how far prompts are read while Claude Code shows nothing; return its further settings.

    With ``-p`` a line of stderr does, else the status line, where the user has none.
    """
    has_screen = claude_code.has_screen(given)
    if not claude_code.starts_session(given) or not sys.stderr.isatty():
        return {}
    if not has_screen:
        start_watch(client, None)
        return {}
    if claude_code.has_status_line(Path.home(), Path.cwd()):
        return {}
    line = (data_dir / _DIRECTORY / f"claude-{os.getpid()}.txt").absolute()
    try:
        make_directory(line.parent)
    except OSError:  # the session starts without it
        return {}
    start_watch(client, line)
    return {"statusLine": status_line(line)}


def _printed(
    name: str,
    base_url: str,
    models: tuple[ServedModel, ...],
    directory: str,
    given: list[str],
    *,
    keyed: bool,
) -> list[str]:
    if name == "claude":
        return list(claude_code_lines(base_url, models[0], keyed=keyed))
    key = KEY_VARIABLE if keyed else None
    start = start_of(name, base_url, models, key=key, directory=directory, given=given)
    return list(paste_lines(start))


def _served(data_dir: Path | None) -> tuple[str, tuple[ServedModel, ...]]:
    """Return the URL of the service and its models, at least one, the loaded one first."""
    with service(data_dir) as client:
        models = ServedModel.all_of(client.ask("GET", "/admin/models"))
        if not models:
            fail("the service has no model yet; see: semantic status", ExitCode.FAILED)
    return client.base_url, models


def _write(start: Start) -> None:
    if not start.file:
        return
    file = Path(start.file)
    try:
        make_directory(file.parent)
        replace_file(file, start.text)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror or error}", ExitCode.FAILED)


def _become(start: Start) -> NoReturn:
    """Replace this process by the agent, so that it owns the terminal and signals."""
    sys.stdout.flush()
    os.execve(start.program, [start.program, *start.words], dict(start.variables))  # noqa: S606 - the user asked for it
