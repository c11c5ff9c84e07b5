"""Commands in a directory whose files name another address, as a cloned repository may have."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.prepared_commands import PreparedCommands

_ROOT = Path(__file__).parents[3]
KEY = "correct-horse-battery-staple"
CLIENTS = (
    ("run", "my secret prompt"),
    ("launch", "claude", "-p", "my secret prompt"),
    ("jobs", "ls"),
    ("status",),
    ("batch", "ls"),
    ("models", "ls"),
    ("doctor",),
)


class Thief:
    """Counts the connections to its address."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0)
        self.port: int = self._socket.getsockname()[1]

    def connections(self) -> int:
        found = 0
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return found
            found += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def thief() -> Iterator[Thief]:
    one = Thief()
    yield one
    one.close()


@pytest.fixture
def repository(tmp_path: Path, thief: Thief) -> Path:
    directory = tmp_path / "cloned"
    directory.mkdir()
    (directory / "semantic.toml").write_text(
        f"data_dir = '{tmp_path}/theirs'\n[server]\nport = {thief.port}\n"
    )
    (directory / ".env").write_text(
        f"SEMANTIC_SERVER__PORT={thief.port}\nSEMANTIC_DATA_DIR={tmp_path}/theirs\n"
    )
    return directory


class Visitor:
    """Runs ``semantic`` in the directory."""

    def __init__(self, directory: Path, commands: PreparedCommands) -> None:
        self._directory, self._commands = directory, commands

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
        ours = {
            "HOME": str(self._directory.parent / "home"),
            "PYTHONPATH": str(_ROOT),
            "SEMANTIC_API_KEY": KEY,
            "COLUMNS": "400",
        }
        return self._commands.run(*words, cwd=self._directory, env=kept | ours | variables)


@pytest.fixture
def visitor(repository: Path, prepared_commands: PreparedCommands) -> Visitor:
    return Visitor(repository, prepared_commands)


def test_no_command_sends_the_key_to_an_address_of_the_directory(
    repository: Path, thief: Thief, visitor: Visitor
) -> None:
    for words in CLIENTS:
        visitor.run(*words)
    assert thief.connections() == 0
    # Trust is for serve and the commands on the log.
    assert visitor.run("config", "trust")[0] == 0
    visitor.run(*CLIENTS[0])
    assert thief.connections() == 0
    assert not (repository.parent / "theirs").exists()


def test_serve_and_doctor_name_the_files_that_they_do_not_read(
    repository: Path, visitor: Visitor
) -> None:
    # It ends at its options, before any part starts.
    refused = {"SEMANTIC_SERVER__HOST": "0.0.0.0"}
    code, _, err = visitor.run("serve", **refused)
    assert code == 78
    assert f"{repository / 'semantic.toml'} is not trusted and not read" in err
    assert f"{repository / '.env'} is not read" in err
    assert not (repository.parent / "theirs").exists()
    report = json.loads(visitor.run("doctor", "--json")[1])
    found = next(check for check in report["checks"] if check["name"] == "config")
    assert found["verdict"] == "warn"
    assert str(repository / "semantic.toml") in found["detail"]
    assert visitor.run("serve", "--config", "semantic.toml", **refused)[2].count("\n") == 1


def test_serve_reads_a_file_after_trust_and_not_after_a_change(
    repository: Path, visitor: Visitor
) -> None:
    file = repository / "semantic.toml"
    (repository / ".env").unlink()
    file.write_text("[server]\nhost = '0.0.0.0'\n")
    assert visitor.run("config", "trust")[0] == 0
    code, _, err = visitor.run("serve")
    assert (code, "0.0.0.0 can be reached" in err) == (78, True)
    file.write_text("[server]\nhost = '0.0.0.0'\nport = 1\n")
    assert "has changed since you trusted it" in visitor.run("log", "ls")[2]
    out = visitor.run("config", "show", "--origin", "--json")[1]
    assert json.loads(out)["server.host"] == {"value": "127.0.0.1", "origin": "default"}
