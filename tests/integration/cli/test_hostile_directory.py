"""Commands in a directory whose files name another address, as a cloned repository may have."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.polling import scaled

_ROOT = Path(__file__).parents[3]
_DEADLINE_S = 60
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


def _start(repository: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
    ours = {
        "HOME": str(repository.parent / "home"),
        "PYTHONPATH": str(_ROOT),
        "SEMANTIC_API_KEY": KEY,
        "COLUMNS": "400",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ops.cli.main", *words],
        cwd=repository,
        env=kept | ours | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(repository: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    return _end(_start(repository, *words, **variables))


def _end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=scaled(_DEADLINE_S))
    return process.returncode, out, err


def test_no_command_sends_the_key_to_an_address_of_the_directory(
    repository: Path, thief: Thief
) -> None:
    for process in [_start(repository, *words) for words in CLIENTS]:
        _end(process)
    assert thief.connections() == 0
    # Trust is for serve and the commands on the log.
    assert _run(repository, "config", "trust")[0] == 0
    _run(repository, *CLIENTS[0])
    assert thief.connections() == 0
    assert not (repository.parent / "theirs").exists()


def test_serve_and_doctor_name_the_files_that_they_do_not_read(repository: Path) -> None:
    # It ends at its options, before any part starts.
    refused = {"SEMANTIC_SERVER__HOST": "0.0.0.0"}
    # At once: imports take most of their time.
    unnamed = _start(repository, "serve", **refused)
    doctor = _start(repository, "doctor", "--json")
    code, _, err = _end(unnamed)
    assert code == 78
    assert f"{repository / 'semantic.toml'} is not trusted and not read" in err
    assert f"{repository / '.env'} is not read" in err
    assert not (repository.parent / "theirs").exists()
    with_file = _start(repository, "serve", "--config", "semantic.toml", **refused)
    report = json.loads(_end(doctor)[1])
    found = next(check for check in report["checks"] if check["name"] == "config")
    assert found["verdict"] == "warn"
    assert str(repository / "semantic.toml") in found["detail"]
    assert _end(with_file)[2].count("\n") == 1


def test_serve_reads_a_file_after_trust_and_not_after_a_change(repository: Path) -> None:
    file = repository / "semantic.toml"
    (repository / ".env").unlink()
    file.write_text("[server]\nhost = '0.0.0.0'\n")
    assert _run(repository, "config", "trust")[0] == 0
    code, _, err = _run(repository, "serve")
    assert (code, "0.0.0.0 can be reached" in err) == (78, True)
    file.write_text("[server]\nhost = '0.0.0.0'\nport = 1\n")
    events = _start(repository, "log", "ls")
    config = _start(repository, "config", "show", "--origin", "--json")
    assert "has changed since you trusted it" in _end(events)[2]
    out = _end(config)[1]
    assert json.loads(out)["server.host"] == {"value": "127.0.0.1", "origin": "default"}
