"""The real Codex CLI from npm, in a home of its own."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from ops.clients.claude_code import ServedModel
from ops.clients.codex import arguments, catalogue
from tests.support.clients import npm
from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.descendants import mark
from tests.support.processes.service import Service

VERSION = "0.169.0"
CONFIG = """
model = "semantic-demo"
model_provider = "semantic"
model_context_window = 131072
web_search = "disabled"
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


_FREE = "--dangerously-bypass-approvals-and-sandbox"


def install() -> Path:
    """Return the CLI; installs it where it is missing."""
    if sys.platform == "darwin" and platform.machine() not in {"arm64", "x86_64"}:
        npm.missing("there is no Codex for this machine")
    return npm.install(
        "@openai/codex",
        VERSION,
        npm.ROOT / ".venv" / "codex" / VERSION,
        "@openai/codex-*/vendor/*/bin/codex",
    )


def begun(
    codex: Path, service: Service, home: Path, *arguments: str, more: str = "", retries: int = 2
) -> subprocess.Popen[str]:
    """Start the CLI in ``home/work``.

    Args:
        codex: The CLI.
        service: The service that it talks to.
        home: Its own home.
        arguments: Arguments of ``codex exec``.
        more: Further lines of its configuration.
        retries: How often it asks again, each time after a longer pause.
    """
    (_config_home(home) / "config.toml").write_text(
        CONFIG.format(base_url=service.base_url, more=more, retries=retries)
    )
    return _started([str(codex)], home, "exec", "--json", "--skip-git-repo-check", *arguments)


def launched(codex: Path, service: Service, home: Path, *words: str) -> subprocess.Popen[str]:
    """Start ``codex exec`` in ``home/work`` with our catalogue; the user has no settings."""
    listing = httpx.get(f"{service.base_url}/admin/models", timeout=scaled(WITHIN_S)).json()
    models = ServedModel.all_of(listing)
    file = _config_home(home) / "models.json"
    file.write_text(json.dumps(catalogue(models)))
    given = ["exec", "--json", "--skip-git-repo-check", _FREE, *words]
    ours = arguments(given, service.base_url, models[0], catalogue_path=str(file), keyed=False)
    return _started([str(codex), *ours], home)


def _config_home(home: Path) -> Path:
    config = home / "codex"
    config.mkdir(parents=True, exist_ok=True)
    return config


def _started(program: list[str], home: Path, *words: str) -> subprocess.Popen[str]:
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    env = {
        "HOME": str(home),
        "CODEX_HOME": str(home / "codex"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/sh",
        **mark(),
    }
    return subprocess.Popen(
        [*program, *words],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(running: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a run of the CLI to succeed and return its events."""
    output, _ = running.communicate(timeout=scaled(1700))
    assert running.returncode == 0, output[-4000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
