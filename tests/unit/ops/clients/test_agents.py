"""What agents are started with: the lines to paste do what ``semantic launch`` does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ops.clients.agents import AGENTS, paste_lines, start_of
from ops.clients.claude_code import KEY_VARIABLE, ServedModel
from tests.support.polling import scaled

_URL = "http://127.0.0.1:8123"
_KEY = "k" * 16
_SHOW = '#!/bin/sh\nenv -0 > "$0.env"; printf "%s\\0" "$@" > "$0.words"\n'
_NAMES = [name for name in AGENTS if name != "claude"]


def _shown(file: Path) -> list[str]:
    return file.read_text().split("\0")[:-1]


@pytest.mark.parametrize("model", ["m", "it's $HOME`id`", 'a"b\nEND\n', "$HOME/.semantic`id`"])
@pytest.mark.parametrize("name", _NAMES)
def test_pasted_lines_start_an_agent_as_launch_does(name: str, model: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / AGENTS[name].program
    program.parent.mkdir()
    program.write_text(_SHOW)
    program.chmod(0o700)
    models = [ServedModel(model, 131_072)]
    pasted = name != "codex"  # its page has a file of settings in place of arguments
    place = {} if pasted else {"directory": f"{tmp_path}/.semantic"}
    start = start_of(name, _URL, models, key=KEY_VARIABLE, given=["say it"], **place)
    path = f"{program.parent}:/usr/bin:/bin"
    env = {"HOME": str(tmp_path), "PATH": path, "SEMANTIC_API_KEY": _KEY}
    subprocess.run(
        ["/bin/sh", "-c", "\n".join(paste_lines(start))], env=env, check=True, timeout=scaled(60)
    )
    launched = start_of(
        name, _URL, models, key=_KEY, directory=f"{tmp_path}/.semantic", given=["say it"]
    )
    assert _shown(program.with_name(f"{program.name}.words")) == list(launched.words)
    variables = dict(one.split("=", 1) for one in _shown(program.with_name(f"{program.name}.env")))
    assert {one: variables[one] for one in launched.variables} == launched.variables
    if launched.file and name != "cline":
        assert Path(launched.file).read_text().rstrip("\n") == launched.text


@pytest.mark.parametrize("name", _NAMES)
def test_an_unknown_context_is_not_made_up(name: str) -> None:
    start = start_of(name, _URL, [ServedModel("m", None)], key=None)
    assert "None" not in json.dumps([start.variables, list(start.words)])
    assert "{}" not in start.text
