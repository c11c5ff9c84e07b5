"""The example with hooks: ``docs/examples/claude_code`` in the project of a user."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.clients.claude_code import started
from tests.support.processes.examples import EXAMPLES
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly


def test_hooks_refuse_a_command_and_write_what_a_session_cost(
    claude_binary: Path, service: Service, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / "claude_code", tmp_path / ".claude")
    may = ("--allowedTools", "Bash,Write")
    started(
        claude_binary, service, tmp_path,
        "-p", "Create a file hello.py with the content 'hello world'", *may,
    )  # fmt: skip
    assert (tmp_path / "hello.py").read_text() == "hello world"
    ledger = tmp_path / ".claude" / "ledger.jsonl"
    first = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert len(first) >= 2  # the call, and the sentence about its result
    assert first[-1]["known"] > first[-1]["prompt"] / 2
    result = started(
        claude_binary, service, tmp_path, "--continue", "-p", "Please run git status", *may
    )
    lines = ledger.read_text().splitlines()
    assert len(lines) > len(first)
    assert len({json.loads(line)["job"] for line in lines}) == len(lines)
    transcripts = (tmp_path / ".claude" / "projects").rglob("*.jsonl")
    log = "".join(one.read_text() for one in transcripts)
    assert "git is not allowed in this project" in log, result
