"""Agents from npm, started by ``semantic launch``; a script supplies the model's output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.clients import npm, pypi
from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.descendants import mark
from tests.support.processes.scripted_service import call, line, scripted_service
from tests.support.processes.service import Service

_QUESTION = "What is the capital of France?"
_ANSWER = "It is Paris, by the script."
#: Package, version, pattern of the program, and the arguments of one question.
_AGENTS = {
    "continue": ("@continuedev/cli", "1.5.47", "@continuedev/cli/dist/cn.js", ("-p",)),
    "pi": (
        "@earendil-works/pi-coding-agent",
        "1.6.0",
        "@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        ("-p",),
    ),
    "qwen": ("@qwen-code/qwen-code", "0.24.4", "@qwen-code/qwen-code/cli-entry.js", ()),
    "opencode": ("opencode-ai", "1.18.33", "opencode-linux-x64/bin/opencode", ("run",)),
    "cline": ("cline", "3.0.65", ".bin/cline", ()),
}
_COMMAND = "echo made > made.txt; echo ran-$((40 + 2))"
#: The tool with which each runs a command, and its arguments.
_TOOLS: dict[str, tuple[str, dict[str, object]]] = {
    "opencode": ("bash", {"command": _COMMAND}),
    "cline": ("run_commands", {"commands": [_COMMAND]}),
}
_AIDER = "0.86.2"
#: They refuse an older Node.
_NODE_22 = frozenset({"pi", "qwen"})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    script = [
        line(_QUESTION, _ANSWER),
        *(line(f"Make it by {tool}.", call(tool, **words)) for tool, words in _TOOLS.values()),
        line("ran-42", "It is made, by the script."),
        line("What is left?", "Nothing is left, by the script."),
    ]
    service = scripted_service(tmp_path_factory.mktemp("launch"), script).start()
    yield service
    service.kill()


@pytest.mark.parametrize(
    "agent",
    [
        "continue",
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in ("pi", "qwen", "opencode", "cline")
        ),
    ],
)
def test_a_launched_agent_is_answered(agent: str, stage: Service, tmp_path: Path) -> None:
    words = _AGENTS[agent][3]
    output = _launched(agent, _program(agent), stage, tmp_path, *words, _QUESTION)
    assert _ANSWER in output, output[-4000:]


@pytest.mark.nightly
def test_a_launched_aider_is_answered(stage: Service, tmp_path: Path) -> None:
    program = pypi.install(f"aider-{_AIDER}", "aider", f"aider-chat=={_AIDER}")
    words = ("--no-git", "--yes-always", "--no-show-model-warnings", "--message", _QUESTION)
    output = _launched("aider", program, stage, tmp_path, *words)
    assert _ANSWER in output, output[-4000:]


@pytest.mark.nightly
@pytest.mark.parametrize("agent", sorted(_TOOLS))
def test_a_launched_agent_runs_a_command_and_goes_on(
    agent: str, stage: Service, tmp_path: Path
) -> None:
    program, words = _program(agent), _AGENTS[agent][3]
    output = _launched(agent, program, stage, tmp_path, *words, f"Make it by {_TOOLS[agent][0]}.")
    assert "It is made, by the script." in output, output[-4000:]
    assert (tmp_path / "made.txt").read_text() == "made\n"
    if agent == "opencode":
        # Cline resumes a session only in a terminal.
        output = _launched(agent, program, stage, tmp_path, *words, "--continue", "What is left?")
        assert "Nothing is left, by the script." in output, output[-4000:]
    jobs = httpx.get(
        f"{stage.base_url}/v1/jobs", params={"limit": 50}, timeout=scaled(WITHIN_S)
    ).json()["data"]
    # The last turn, behind the command or in the resumed session, knows what precedes it.
    usage = jobs[0]["usage"]
    assert usage["cached_tokens"] > 0.8 * usage["prompt_tokens"], usage


def _program(agent: str) -> Path:
    package, version, program, _ = _AGENTS[agent]
    if agent in _NODE_22 and _node_major() < 22:
        npm.missing("this agent needs Node 22")
    return npm.install(package, version, npm.ROOT / ".venv" / agent / version, program)


def _launched(agent: str, program: Path, stage: Service, home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", "launch", agent, "--program", str(program),
         "--data-dir", str(stage.data_dir), "--", *words],
        cwd=home,
        env={
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(npm.ROOT),
            **mark(),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(600),
    )  # fmt: skip
    return done.stdout + done.stderr


def _node_major() -> int:
    found = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    return int(found.stdout.strip().removeprefix("v").split(".")[0] or 0)
