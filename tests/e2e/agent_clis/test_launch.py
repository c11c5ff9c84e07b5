"""Agents from npm and PyPI, started by ``semantic launch``; a script has the model's output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients import npm, pypi
from tests.support.clients.terminal import ENTER, Terminal
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.descendants import mark
from tests.support.processes.scripted_service import call, line
from tests.support.processes.service import Service

_QUESTION = "What is the capital of France?"
_ANSWER = "It is Paris, by the script."
_LATER, _LATER_ANSWER = "What is left?", "Nothing is left, by the script."
_COMMAND = "echo made > made.txt; echo ran-$((40 + 2))"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agent:
    """One agent and the tool with which it runs a command.

    Attributes:
        program: Pattern of its path below ``node_modules``.
        words: Arguments of one question.
        later: Those with which another process goes on with the session, if they differ.
    """

    package: str
    version: str
    program: str
    tool: str
    arguments: dict[str, object]
    words: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    needs_new_node: bool = False


_AGENTS = {
    "continue": _Agent(
        package="@continuedev/cli",
        version="1.5.47",
        program="@continuedev/cli/dist/cn.js",
        tool="Bash",
        arguments={"command": _COMMAND},
        words=("--auto", "-p"),
        later=("--auto", "-p", "--resume"),
    ),
    "pi": _Agent(
        package="@earendil-works/pi-coding-agent",
        version="1.6.0",
        program="@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        tool="bash",
        arguments={"command": _COMMAND},
        words=("-p",),
        later=("-p", "--continue"),
        needs_new_node=True,
    ),
    "qwen": _Agent(
        package="@qwen-code/qwen-code",
        version="0.24.4",
        program="@qwen-code/qwen-code/cli-entry.js",
        tool="run_shell_command",
        arguments={"command": _COMMAND, "is_background": False},
        words=("--yolo",),
        later=("--yolo", "--continue"),
        needs_new_node=True,
    ),
    "opencode": _Agent(
        package="opencode-ai",
        version="1.18.33",
        program="opencode-linux-x64/bin/opencode",
        tool="bash",
        arguments={"command": _COMMAND},
        words=("run",),
        later=("run", "--continue"),
    ),
    "kilo": _Agent(
        package="@kilocode/cli",
        version="7.7.7",
        program="@kilocode/cli-linux-x64/bin/kilo",
        tool="bash",
        arguments={"command": _COMMAND, "description": "Make it"},
        words=("run", "--auto"),
        later=("run", "--auto", "--continue"),
    ),
    "openclaw": _Agent(
        package="openclaw",
        version="2026.9.6",
        program=".bin/openclaw",
        tool="exec",
        arguments={"command": _COMMAND},
        words=("agent", "--local", "--session-id", "one", "--message"),
        needs_new_node=True,
    ),
    "cline": _Agent(
        package="cline",
        version="3.0.65",
        program=".bin/cline",
        tool="run_commands",
        arguments={"commands": [_COMMAND]},
    ),
}
_AIDER = "0.86.2"
#: The format of an edit: the name of a file, and its whole content.
_EDIT = "Here it is.\n\nmade.txt\n```\nmade\n```\n"
_SCRIPT = [
    line(_QUESTION, _ANSWER),
    *(line(f"Make it as {name}.", call(agent.tool, **agent.arguments))
      for name, agent in _AGENTS.items()),
    line("ran-42", "It is made, by the script."),
    line("Make it as aider.", _EDIT),
    line(_LATER, _LATER_ANSWER),
]  # fmt: skip


@pytest.fixture
def stage(scripted: Callable[[Sequence[dict[str, Any]]], Service]) -> Service:
    return scripted(_SCRIPT)


def test_a_launched_agent_is_answered(stage: Service, tmp_path: Path) -> None:
    output = _launched("continue", stage, tmp_path, *_AGENTS["continue"].words, _QUESTION)
    assert _ANSWER in output, output[-4000:]


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(_AGENTS))
def test_a_launched_agent_runs_a_command_and_another_process_goes_on(
    name: str, stage: Service, tmp_path: Path
) -> None:
    agent = _AGENTS[name]
    output = _launched(name, stage, tmp_path, *agent.words, f"Make it as {name}.")
    assert "It is made, by the script." in output, output[-4000:]
    (made,) = tmp_path.rglob("made.txt")
    assert made.read_text() == "made\n"
    before = {job["id"] for job in _jobs(stage)}
    if name == "cline":
        _go_on_with_cline(stage, tmp_path)
    else:
        output = _launched(name, stage, tmp_path, *(agent.later or agent.words), _LATER)
        assert _LATER_ANSWER in output, output[-4000:]
    assert _reused(stage, before) > 0.8


@pytest.mark.nightly
def test_a_launched_aider_edits_a_file_and_another_process_goes_on(
    stage: Service, tmp_path: Path
) -> None:
    words: tuple[str, ...] = ("--no-git", "--yes-always", "--no-show-model-warnings")
    output = _launched("aider", stage, tmp_path, *words, "--message", "Make it as aider.")
    assert (tmp_path / "made.txt").read_text() == "made\n", output[-4000:]
    before = {job["id"] for job in _jobs(stage)}
    words = (*words, "--restore-chat-history")
    output = _launched("aider", stage, tmp_path, *words, "--message", _LATER)
    assert _LATER_ANSWER in output, output[-4000:]
    # The manual of the format, which precedes the history, differs where files are in the chat.
    assert _reused(stage, before) > 0.4


def _go_on_with_cline(stage: Service, home: Path) -> None:
    """Resume the session of Cline in a terminal, without which it refuses to."""
    (session,) = (home / ".cline" / "data" / "sessions").iterdir()
    command, env = _command("cline", stage, home, "--id", session.name)
    before = len(_jobs(stage))
    with Terminal(command, env=env | {"TERM": "xterm-256color"}, cwd=home) as terminal:
        terminal.wait_for("Make it as cline")
        terminal.press(_LATER)
        terminal.wait_for("left\\?")
        terminal.press(ENTER)
        wait_until(
            lambda: _jobs(stage),
            lambda jobs: len(jobs) > before and jobs[0]["status"] == "completed",
            within_s=180,
            what="an answer",
            describe=terminal.text,
        )


def _jobs(stage: Service) -> list[dict[str, Any]]:
    """Return the jobs, the latest first."""
    url = f"{stage.base_url}/v1/jobs"
    reply = httpx.get(url, params={"limit": 100}, timeout=scaled(WITHIN_S))
    found: list[dict[str, Any]] = reply.raise_for_status().json()["data"]
    return found


def _reused(stage: Service, before: set[str]) -> float:
    """Return the cached share of the prompt of a new job, the largest: titles come beside it."""
    later = [job["usage"] for job in _jobs(stage) if job["id"] not in before]
    return max(float(usage["cached_tokens"] / usage["prompt_tokens"]) for usage in later)


def _program(name: str) -> Path:
    if name == "aider":
        return pypi.install(f"aider-{_AIDER}", "aider", f"aider-chat=={_AIDER}")
    agent = _AGENTS[name]
    prefix = npm.ROOT / ".venv" / name / agent.version
    return npm.install(agent.package, agent.version, prefix, agent.program, path=_path(name))


def _path(name: str) -> str:
    """Return the PATH of an agent, with a Node that it accepts."""
    path = os.environ["PATH"]
    if name in _AGENTS and _AGENTS[name].needs_new_node:
        return f"{npm.new_node()}{os.pathsep}{path}"
    return path


def _command(
    name: str, stage: Service, home: Path, *words: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command of a launch, and its whole environment."""
    command = [
        *(sys.executable, "-m", "ops.cli.main", "launch", name, "--program", str(_program(name))),
        *("--data-dir", str(stage.data_dir), "--", *words),
    ]
    env = {"HOME": str(home), "PATH": _path(name), "LANG": "C.UTF-8", "PYTHONPATH": str(npm.ROOT)}
    return command, env | mark()


def _launched(name: str, stage: Service, home: Path, *words: str) -> str:
    command, env = _command(name, stage, home, *words)
    done = subprocess.run(
        command,
        cwd=home,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(600),
    )
    return done.stdout + done.stderr
