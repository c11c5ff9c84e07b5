"""The real Claude Code CLI from npm, started the way its users start it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.clients import npm
from tests.support.clients.npm import ROOT
from tests.support.clients.terminal import Terminal
from tests.support.polling import scaled
from tests.support.processes.descendants import mark
from tests.support.processes.service import Service

VERSION = "2.1.329"
#: Limit of one run in print mode.
ANSWERED_WITHIN_S = 300.0


def install() -> Path:
    """Return the CLI; installs it where it is missing."""
    return npm.install(
        "@anthropic-ai/claude-code",
        VERSION,
        ROOT / ".venv" / "claude-code" / VERSION,
        f"@anthropic-ai/claude-code-{_platform()}/claude",
    )


def _platform() -> str:
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = "arm64" if platform.machine() in {"arm64", "aarch64"} else "x64"
    return f"{system}-{machine}"


def ask(
    claude_binary: Path, service: Service, home: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    env = {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "SHELL": "/bin/sh",
        "USER": "tester",
        **mark(),
        "ANTHROPIC_BASE_URL": service.base_url,
        "ANTHROPIC_AUTH_TOKEN": "local",
        "ANTHROPIC_MODEL": "semantic-demo",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "semantic-demo",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "1800000",
        "API_TIMEOUT_MS": "1800000",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return subprocess.run(
        [str(claude_binary), *arguments],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(300),
    )


class ClaudeCode:
    """Claude Code of one user, started by ``semantic launch claude``.

    Args:
        binary: The CLI.
        service: What it talks to.
        home: The user's home, in which it also works.
    """

    def __init__(self, binary: Path, service: Service, home: Path) -> None:
        self.home = home
        self._binary = binary
        self._service = service
        home.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of the user's shell."""
        key = self._service.headers.get("x-api-key")
        return {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "SHELL": "/bin/sh",
            "PYTHONPATH": str(ROOT),
            "ANTHROPIC_API_KEY": "a key of the vendor's, which is not sent",
            **mark(),
        } | ({} if key is None else {"SEMANTIC_API_KEY": key})

    def argv(self, *words: str) -> list[str]:
        """Return the command line of the user."""
        service = ["--program", str(self._binary), "--data-dir", str(self._service.data_dir)]
        return [sys.executable, "-m", "ops.cli.main", "launch", "claude", *service, *words]

    def begin(
        self, prompt: str, *words: str, form: str = "json", **env: str
    ) -> subprocess.Popen[str]:
        """Ask a question in print mode; the answer is the output."""
        return self.start(*words, "-p", prompt, form=form, **env)

    def start(self, *words: str, form: str = "json", **env: str) -> subprocess.Popen[str]:
        """Start the CLI with the arguments of the user."""
        return subprocess.Popen(
            self.argv(*words, "--output-format", form),
            cwd=self.home,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, prompt: str, *words: str, **env: str) -> Any:
        """Ask a question in print mode and return its result, which must be a success."""
        return self.result(self.begin(prompt, *words, **env))

    def result(self, asked: subprocess.Popen[str]) -> Any:
        """Return the result of a question, which must be a success."""
        code, out, err = end_of(asked)
        assert code == 0, out + err + self._service.log()
        result = json.loads(out)
        assert result["is_error"] is False, result
        return result

    def terminal(self, *words: str) -> Terminal:
        """Return a session in a terminal, with its first questions answered."""
        work = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        known = {"hasCompletedOnboarding": True, "theme": "dark"}
        (self.home / ".claude.json").write_text(
            json.dumps(known | {"projects": {str(self.home): work}})
        )
        return Terminal(self.argv(*words), env=self.env, cwd=self.home)


def end_of(asked: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr."""
    try:
        out, err = asked.communicate(timeout=scaled(ANSWERED_WITHIN_S))
    finally:
        abandon(asked)
    return asked.returncode, out, err


def abandon(asked: subprocess.Popen[str]) -> None:
    """Kill the process of a question, if it still runs."""
    if asked.poll() is None:
        asked.kill()
        asked.communicate()


def started(
    claude_binary: Path,
    service: Service,
    home: Path,
    *words: str,
    tools: str = "Bash,Read,Edit,Write",
) -> Any:
    """Start Claude Code as a user does, by ``semantic launch claude``, and return its result."""
    user = ClaudeCode(claude_binary, service, home)
    return user.result(user.start(*words, "--tools", tools))
