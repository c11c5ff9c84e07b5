"""The real Claude Code CLI from npm, in print mode, answered by the demo model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

import worker.demo_model
from tests.support.clients.claude_code import ClaudeCode, started
from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.service import Service


def test_one_command_starts_it_and_leaves_the_user_s_settings_alone(
    claude_binary: Path, service: Service, home: Path
) -> None:
    (home / ".claude").mkdir()
    settings = home / ".claude" / "settings.json"
    # Nothing listens there: a session that followed this would get no answer.
    settings.write_text('{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "model": "opus"}')
    before = json.loads(settings.read_bytes())["env"]
    result = started(claude_binary, service, home, "-p", "What is the capital of France?")
    assert list(result["modelUsage"]) == ["claude-local"], result
    assert result["modelUsage"]["claude-local"]["contextWindow"] == 131_072
    assert result["result"].strip(), result
    events = httpx.get(
        f"{service.base_url}/v1/events",
        params={"type": "JobSubmitted", "limit": 1000},
        timeout=scaled(WITHIN_S),
    ).json()["data"]
    stories = [
        httpx.get(
            f"{service.base_url}/v1/jobs/{event['stream']}/timeline", timeout=scaled(WITHIN_S)
        ).text
        for event in events
    ]
    ours = [story for story in stories if "request from claude-cli/" in story]
    assert ours, "the log has no job that came from Claude Code"
    # It modernises names of its own models there by itself; the rest is as it was.
    assert json.loads(settings.read_bytes())["env"] == before


def test_a_continued_session_reads_only_what_is_new(
    claude_binary: Path, service: Service, home: Path
) -> None:
    questions = ("What is the capital of France?", "Say hello.", "What is the capital of Italy?")
    sessions = set()
    for turn, question in enumerate(questions):
        more = ["--continue"] if turn else []
        result = started(claude_binary, service, home, *more, "-p", question)
        sessions.add(result["session_id"])
    (session,) = sessions
    jobs = httpx.get(
        f"{service.base_url}/v1/jobs",
        params={"agent_id": session, "limit": 100},
        timeout=scaled(WITHIN_S),
    ).json()["data"]
    usages = [job["usage"] for job in reversed(jobs)]
    assert len(usages) >= len(questions)
    for before, after in pairwise(usages):
        # Everything that was read and said is known; the last token was never read.
        assert after["cached_tokens"] >= before["total_tokens"] - 2, usages


@pytest.mark.nightly
def test_a_session_goes_on_after_a_swap(claude_binary: Path, tmp_path: Path) -> None:
    for name in ("day", "night"):
        shutil.copytree(Path(worker.demo_model.__file__).parent, tmp_path / name)
    config = tmp_path / "semantic.toml"
    config.write_text(
        "".join(f'[models.{one}]\nsource = "{tmp_path / one}"\n' for one in ("day", "night"))
    )
    service = Service(
        tmp_path / "data",
        env={"SEMANTIC_CONFIG": str(config), "SEMANTIC_MODEL__ID": "day"},
    ).start()
    try:
        user = ClaudeCode(claude_binary, service, tmp_path / "home")
        tools = ("--tools", "Bash,Read,Edit,Write")
        first = user.ask("What is the capital of France?", *tools)
        swap = [sys.executable, "-m", "ops.cli.main", "models", "swap", "night"]
        subprocess.run(
            [*swap, "--data-dir", str(service.data_dir)], check=True, timeout=scaled(180)
        )
        second = user.ask("Say hello.", "--continue", *tools)
        assert second["session_id"] == first["session_id"]
        jobs = httpx.get(
            f"{service.base_url}/v1/jobs",
            params={"agent_id": first["session_id"]},
            timeout=scaled(WITHIN_S),
        ).json()["data"]
        answered = {job["answered_by"] for job in jobs}
    finally:
        assert service.stop() == 0, service.log()
    assert answered == {"day", "night"}


def test_a_session_with_tools_changes_a_file_and_runs_a_command(
    claude_binary: Path, service: Service, home: Path
) -> None:
    # Behind Claude Code's own prompt of 5,000 tokens, which no training has seen.
    talk = partial(started, claude_binary, service, home)
    may = ("--allowedTools", "Bash,Write")
    talk("-p", "Create a file hello.py with the content 'hello world'", *may)
    assert (home / "hello.py").read_text() == "hello world"
    result = talk("-p", "Run the command echo hello world", *may)
    assert result["num_turns"] == 2, result
    jobs = httpx.get(
        f"{service.base_url}/v1/jobs",
        params={"agent_id": result["session_id"]},
        timeout=scaled(WITHIN_S),
    ).json()["data"]
    after, call = jobs
    (ran,) = httpx.get(f"{service.base_url}/v1/jobs/{call['id']}", timeout=scaled(WITHIN_S)).json()[
        "output"
    ]["tool_calls"]
    assert (ran["name"], json.loads(ran["arguments"])["command"]) == ("Bash", "echo hello world")
    # The result went in behind the call as it was sampled, though Claude Code echoes other bytes.
    assert after["usage"]["cached_tokens"] >= call["usage"]["total_tokens"] - 2
