"""Agents from npm, started by ``semantic launch``; a script supplies the model's output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import npm
from tests.support.polling import scaled
from tests.support.processes.descendants import mark
from tests.support.processes.scripted_service import line, scripted_service
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
#: They refuse an older Node.
_NODE_22 = frozenset({"pi", "qwen"})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = scripted_service(
        tmp_path_factory.mktemp("launch"), [line(_QUESTION, _ANSWER)]
    ).start()
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
    package, version, program, words = _AGENTS[agent]
    if agent in _NODE_22 and _node_major() < 22:
        npm.missing("this agent needs Node 22")
    binary = npm.install(package, version, npm.ROOT / ".venv" / agent / version, program)
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", "launch", agent, "--program", str(binary),
         "--data-dir", str(stage.data_dir), "--", *words, _QUESTION],
        cwd=tmp_path,
        env={
            "HOME": str(tmp_path),
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
    assert _ANSWER in done.stdout + done.stderr, (done.stdout + done.stderr)[-4000:]


def _node_major() -> int:
    found = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    return int(found.stdout.strip().removeprefix("v").split(".")[0] or 0)
