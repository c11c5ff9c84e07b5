"""What is shown can be pasted."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from ops.clients.claude_code import ServedModel
from ops.clients.set_up import claude_code_lines, curl_line
from ops.supervisor.startup_banner import (
    StartupBanner,
    without_password,
)
from tests.support.polling import scaled

_URL = "http://127.0.0.1:8123"


def _exported(model: ServedModel) -> dict[str, str]:
    exports = [line for line in claude_code_lines(_URL, model) if line.startswith("export")]
    script = "\n".join([*exports, "env"])
    said = subprocess.run(
        ["/bin/sh", "-c", script],
        env={},
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    ).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


@pytest.mark.parametrize("name", ["semantic-demo", "org/model", "it's odd; $HOME"])
def test_exports_set_what_they_say(name: str) -> None:
    variables = _exported(ServedModel(name, 131_072))
    assert variables["ANTHROPIC_BASE_URL"] == _URL
    assert variables["ANTHROPIC_AUTH_TOKEN"] == "local"
    models = [value for key, value in variables.items() if key.endswith("_MODEL")]
    assert models == [name] * 5
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
    assert variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"


def test_small_context_gets_few_tools_and_short_answers() -> None:
    lines = list(claude_code_lines(_URL, ServedModel("m", 4096)))
    assert lines[-1].endswith('--tools "Bash,Read,Edit,Write"')
    assert "CLAUDE_CODE_MAX_OUTPUT_TOKENS=1024" in " ".join(lines)


def test_unknown_context_is_not_made_up() -> None:
    assert "CONTEXT_TOKENS" not in " ".join(claude_code_lines(_URL, ServedModel("m", None)))


@pytest.mark.parametrize("name", ["semantic-demo", "it's", 'a"b\\c'])
def test_body_of_the_curl_line_is_json(name: str) -> None:
    words = shlex.split(curl_line(_URL, name))
    assert json.loads(words[words.index("-d") + 1])["model"] == name


def test_narrow_pipe_wraps_no_line() -> None:
    out = io.StringIO()
    banner = StartupBanner(Console(file=out, width=20))
    banner.begin(
        version="1",
        page=_URL,
        data_dir=Path("/some/[bold]rather/long/directory"),
    )
    banner.log("sqlite:////x", "SQLite 3")
    banner.ready(_URL, ServedModel("m", 4096), 1.0)
    shown = out.getvalue()
    assert "/some/[bold]rather/long/directory" in shown
    assert curl_line(_URL, "m") in shown.splitlines()
    assert "\033" not in shown


@pytest.mark.parametrize("on_path", ["/usr/bin/semantic", None])
def test_block_begins_with_the_page_and_has_one_name_for_the_model(
    on_path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: on_path)
    monkeypatch.setattr("sys.argv", [str(Path.cwd() / ".venv/bin/semantic"), "serve"])
    out = io.StringIO()
    banner = StartupBanner(Console(file=out, width=20))
    banner.begin(version="1", page=_URL, data_dir=Path("/d"))
    banner.ready(_URL, ServedModel("org/model", 4096, follow=("claude-*",)), 1.0)
    lines = out.getvalue().splitlines()
    assert lines[1] == f"  page    {_URL}"
    assert "claude-local" not in out.getvalue()
    assert out.getvalue().count("org/model") == 2  # the row of the model, and the request
    command = "semantic" if on_path else ".venv/bin/semantic"
    assert f"Claude Code:   {command} launch claude" in lines


class ClosedTerminal(io.StringIO):
    """Fails as a terminal does whose window was closed."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_closed_terminal_raises_nothing() -> None:
    banner = StartupBanner(Console(file=ClosedTerminal()))
    banner.not_ready_yet("loading", 1.0)
    banner.ready(_URL, ServedModel("m", 4096), 1.0)
    banner.stopping()
    banner.stopped()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@host:1/0", "redis://***@host:1/0"),
        ("postgresql://me:s%40cret@host/db", "postgresql://***@host/db"),
        ("postgresql:///db?password=secret&host=h", "postgresql:///db?password=***&host=h"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
        ("INFO", "INFO"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
