"""``semantic models`` as a process: list, register, and download from a hub on loopback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.models.suggest import SUGGESTED
from tests.support.polling import wait_until
from tests.support.processes.local_hub import COMMIT, Hub, local_hub
from tests.support.processes.prepared_commands import PreparedCommands

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
#: Pieces in which the hub library writes a file.
PIECE = 10 * MIB
WEIGHTS_BYTES = 25 * MIB


class Shell:
    """Runs ``semantic models`` for a user of its own."""

    def __init__(self, home: Path, endpoint: str, commands: PreparedCommands) -> None:
        self.cache = home / "hub" / "hub" / "models--org--Coder"
        self.config = home / ".config" / "semantic" / "semantic.toml"
        kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
        self._variables = kept | {
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "SEMANTIC_DATA_DIR": str(home / "data"),
            "SEMANTIC_SERVER__PORT": "9",
            "HF_HOME": str(home / "hub"),
            "HF_ENDPOINT": endpoint,
            "TERM": "dumb",
            "COLUMNS": "200",
        }
        self._home, self._commands = home, commands

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.cli.main", "models", *words],
            cwd=self._home,
            env=self._variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        return self._commands.run("models", *words, cwd=self._home, env=self._variables | variables)

    def states(self) -> dict[str, str]:
        code, out, err = self.run("ls", "--json")
        assert (code, err) == (0, "")
        return {model["name"]: model["state"] for model in json.loads(out)["data"]}

    def incomplete(self) -> list[Path]:
        return list(self.cache.glob("blobs/*.incomplete"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repository")
    for name, text in {
        "config.json": '{"max_position_embeddings": 8192}',
        "tokenizer.json": "{}",
        "chat_template.jinja": "x",
        "README.md": "nothing that a model needs",
    }.items():
        (directory / name).write_text(text)
    (directory / "model.safetensors").write_bytes(random.Random(1).randbytes(WEIGHTS_BYTES))
    (directory / "consolidated.safetensors").write_bytes(b"the same weights again" * 100)
    (directory / "pytorch_model.bin").write_bytes(b"the same weights again" * 100)
    return directory


@pytest.fixture
def hub(repository: Path) -> Hub:
    return Hub(models={"org/Coder": repository})


@pytest.fixture
def shell(hub: Hub, tmp_path: Path, prepared_commands: PreparedCommands) -> Iterator[Shell]:
    with local_hub(hub) as endpoint:
        yield Shell(tmp_path, endpoint, prepared_commands)


def test_a_model_is_registered_downloaded_listed_and_removed(shell: Shell, hub: Hub) -> None:
    added = shell.run(
        *("add", "coder", "org/Coder", "--alias", "sonnet", "--revision", "v1"),
        *("--draft", "org/Small", "--temperature", "0.2"),
    )
    assert added == (0, f"added coder to {shell.config}\n", "")
    assert 'draft = "org/Small"' in shell.config.read_text()
    assert shell.states() == {"semantic-demo": "available", "coder": "missing"}
    code, out, _ = shell.run("pull", "sonnet")
    assert (code, out.splitlines()[0]) == (
        0,
        f"org/Coder at {COMMIT[:12]}: 4 files, 26.2 MB, 0.0 kB here",
    )
    fetched = {
        line.rpartition("/")[2]
        for line in hub.requested
        if f"GET /org/Coder/resolve/{COMMIT}" in line
    }
    assert fetched == {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    assert shell.states() == {"semantic-demo": "available", "coder": "available"}
    _, shown, _ = shell.run("show", "sonnet", "--json")
    model = json.loads(shown)
    assert (model["size_bytes"], model["context_length"]) == (WEIGHTS_BYTES, 8192)
    assert model["sampling"]["temperature"] == 0.2
    assert shell.run("rm", "coder") == (0, f"removed coder from {shell.config}\n", "")
    assert shell.states() == {"semantic-demo": "available"}


def test_a_download_survives_cut_connections(shell: Shell, hub: Hub) -> None:
    hub.cuts = [12 * MIB, 11 * MIB]
    code, out, err = shell.run("pull", "org/Coder")
    assert (code, out.splitlines()[-1].split(" to ")[0]) == (0, "pulled org/Coder")
    assert [first for _, first in hub.sent] == [0, PIECE, 2 * PIECE]
    assert "Traceback" not in err
    assert shell.states()["org/Coder"] == "available"


def test_a_download_continues_after_a_kill(shell: Shell, hub: Hub) -> None:
    hub.cuts, hub.paused = [12 * MIB], threading.Event()
    with shell.start("pull", "org/Coder") as process:
        wait_until(lambda: [path.stat().st_size for path in shell.incomplete()] == [PIECE])
        process.send_signal(signal.SIGKILL)
    hub.paused.set()
    assert "org/Coder" not in shell.states()
    code, out, _ = shell.run("pull", "org/Coder")
    assert (code, "10.5 MB here" in out) == (0, True)
    assert [first for _, first in hub.sent] == [0, PIECE]
    assert shell.incomplete() == []
    assert shell.states()["org/Coder"] == "available"


def test_a_damaged_file_never_becomes_a_model(shell: Shell, hub: Hub) -> None:
    hub.damaged = True
    code, _, err = shell.run("pull", "org/Coder")
    assert (code, "model.safetensors arrived damaged" in err) == (1, True)
    assert shell.incomplete() == []
    assert "org/Coder" not in shell.states()


def test_a_plan_of_a_model_that_is_nowhere_ends_after_one_question(shell: Shell, hub: Hub) -> None:
    code, _, err = shell.run("plan", "org/None")
    assert (code, "org/None is not on this machine, and the hub has no such model" in err) == (
        78,
        True,
    )
    assert hub.requested == ["GET /api/models/org/None"]


def test_suggestions_need_no_hub_and_know_what_is_here(shell: Shell, hub: Hub) -> None:
    hub.models[SUGGESTED[0].hub_id] = hub.models["org/Coder"]
    assert shell.run("pull", SUGGESTED[0].hub_id)[0] == 0
    asked = len(hub.requested)
    code, out, _ = shell.run("suggest", "--memory", "16GB", "--json")
    found = json.loads(out)
    assert (code, len(hub.requested)) == (0, asked)
    assert [one["is_here"] for one in found["data"]] == [True] + [False] * (len(SUGGESTED) - 1)
    assert [one["contexts"] for one in found["data"]][:3] == [5, 5, 0]
    code, out, _ = shell.run("suggest", "--memory", "16GB")
    assert (code, "does not fit" in out, "of 17.2 GB usable" in out) == (0, True, True)
    assert shell.run("suggest", "--memory", "much")[0] == 2


def test_what_cannot_be_downloaded_is_said_in_one_line(shell: Shell, hub: Hub) -> None:
    hub.gated = frozenset({"org/Coder"})
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    for words, variables, reason in [
        (("org/Coder",), {}, "org/Coder is gated: accept its terms at"),
        (("org/None",), {}, "the hub has no model org/None, or it is private"),
        (("semantic-demo",), {}, "semantic-demo is not on the hub"),
        (("coder",), {}, "coder is no hub id (owner/name) and not registered: semantic-demo"),
        (("org/Coder",), closed, "no answer from http://127.0.0.1:9"),
        (("org/Coder",), {"HF_HUB_OFFLINE": "1"}, "no answer from"),
    ]:
        code, _, err = shell.run("pull", *words, **variables)
        assert code in {1, 2}
        assert err.startswith(f"semantic: {reason}")
        assert len(err.splitlines()) == 1
    hub.gated = frozenset()
    code, _, err = shell.run("pull", "org/Coder", "--revision", "v9")
    assert (code, err) == (1, "semantic: org/Coder has no revision v9\n")


def test_what_cannot_be_registered_changes_no_file(shell: Shell) -> None:
    shell.config.parent.mkdir(parents=True)
    shell.config.write_text("[models.coder]  # mine\nsource = 'org/Coder'\naliases = ['sonnet']\n")
    before = shell.config.read_text()
    for words, code, reason in [
        (("add", "coder", "org/Other"), 78, f"coder is registered already, in {shell.config}"),
        (("add", "b", "org/B", "--alias", "sonnet"), 78, "the name sonnet stands in models.coder"),
        (("add", "swap", "org/B"), 78, "a model may not be called swap"),
        (("add", "b", "org/B", "--temperature", "3"), 78, "b.sampling.temperature"),
        (("rm", "b"), 1, "no [models.b] is configured; there is: coder"),
    ]:
        exit_code, _, err = shell.run(*words)
        assert (exit_code, reason in err) == (code, True), err
        assert shell.config.read_text() == before
