"""The real Codex CLI from npm, in a home of its own."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.clients import npm
from tests.support.polling import scaled
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
        **mark(),
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
    """Wait for a run of the CLI to succeed and return its events."""
    output, _ = running.communicate(timeout=scaled(1700))
    assert running.returncode == 0, output[-4000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
