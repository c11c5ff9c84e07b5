"""The real Codex CLI from npm, answered by the demo model through ``/v1/responses``."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients.claude_code import missing
from tests.support.processes.service import Service

VERSION = "0.169.0"
ROOT = Path(__file__).parents[3]
CONFIG = """
model = "semantic-demo"
model_provider = "semantic"
model_context_window = 131072
approval_policy = "never"
sandbox_mode = "danger-full-access"

{more}
[model_providers.semantic]
name = "semantic"
base_url = "{base_url}/v1"
wire_api = "responses"
requires_openai_auth = false
request_max_retries = {retries}
stream_max_retries = {retries}
stream_idle_timeout_ms = 1800000
supports_websockets = false
"""


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    """Install the CLI once beside the environment; CI treats a failure as a failure."""
    prefix = ROOT / ".venv" / "codex" / VERSION
    found = sorted(prefix.glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))
    if found:
        return found[0]
    npm = shutil.which("npm")
    if npm is None:
        missing("npm is not installed")
    if sys.platform == "darwin" and platform.machine() not in {"arm64", "x86_64"}:
        missing("there is no Codex for this machine")
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "package.json").write_text('{"name": "codex", "private": true}')
    done = subprocess.run(
        [str(npm), "install", "--no-audit", "--no-fund", "--include=optional",
         f"@openai/codex@{VERSION}"],
        cwd=prefix,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )  # fmt: skip
    found = sorted(prefix.glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))
    if done.returncode != 0 or not found:
        missing(f"npm could not install Codex: {done.stderr[-500:]}")
    return found[0]


def begun(
    codex: Path, service: Service, home: Path, *arguments: str, more: str = "", retries: int = 2
) -> subprocess.Popen[str]:
    """Start the CLI in ``home/work``.

    Args:
        codex: The CLI.
        service: What answers it.
        home: Its own home.
        arguments: Of ``codex exec``.
        more: Of its configuration.
        retries: How often it asks again, each time after a longer while.
    """
    work, config = home / "work", home / "codex"
    work.mkdir(parents=True, exist_ok=True)
    config.mkdir(exist_ok=True)
    text = CONFIG.format(base_url=service.base_url, more=more, retries=retries)
    (config / "config.toml").write_text(text)
    env = {
        "HOME": str(home),
        "CODEX_HOME": str(config),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/sh",
    }
    return subprocess.Popen(
        [str(codex), "exec", "--json", "--skip-git-repo-check", *arguments],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(running: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return what a run of the CLI said, once it has ended well."""
    said, _ = running.communicate(timeout=1700)
    assert running.returncode == 0, said[-4000:]
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def _ask(codex: Path, service: Service, home: Path, *arguments: str) -> list[dict[str, Any]]:
    return ended(begun(codex, service, home, *arguments))


def test_codex_is_answered_and_goes_on(
    codex_binary: Path, service: Service, tmp_path: Path
) -> None:
    first = _ask(codex_binary, service, tmp_path, "What is the capital of France?")
    assert first[-1]["type"] == "turn.completed", first
    assert first[-1]["usage"]["output_tokens"] > 0
    session = first[0]["thread_id"]
    second = _ask(codex_binary, service, tmp_path, "resume", session, "Say hello.")
    assert second[-1]["type"] == "turn.completed", second
    jobs = httpx.get(f"{service.base_url}/v1/jobs", params={"limit": 50}).json()["data"]
    asked = [job for job in jobs if job["protocol"] == "openai-responses"]
    assert asked
    # The second question knows all that the first one read.
    last, before = asked[0]["usage"], asked[-1]["usage"]
    assert last["cached_tokens"] >= before["prompt_tokens"] - 2, (before, last)
