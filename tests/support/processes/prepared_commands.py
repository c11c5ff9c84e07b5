"""Runs ``semantic`` in processes that have its imports already, for tests of what a command does.

A process of the session imports the commands once; each command is a fork of it, with the words,
the directory, the environment and the files that the test gives. Half a second of imports is most
of what a command costs. Tests of the start itself, of what it imports and of signals take
``python -m ops.cli.main``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.polling import scaled
from tests.support.processes.fork_server import ForkServer, become

_DEADLINE_S = 240
#: What ``semantic`` imports. Not the client of the hub: it reads the environment at its import.
_PREPARED = (
    *("alembic.command", "httpx", "psutil", "pydantic_settings", "redis", "rich.console"),
    *("rich.progress", "sqlalchemy", "ops.cli.client", "ops.cli.jobs", "ops.cli.log.events"),
    *("ops.cli.service.config", "ops.cli.service.launch", "ops.cli.service.status"),
    *("ops.log.migrate", "ops.log.reader", "ops.observe.logs", "ops.settings.settings"),
    *("ops.broker.private_redis", "ops.supervisor.probes", "ops.supervisor.startup_banner"),
)
_READS_ENVIRONMENT = "huggingface_hub"


class PreparedCommands:
    """Runs one command after the other."""

    def __init__(self) -> None:
        self._server = ForkServer(__name__)

    def run(
        self, *words: str, cwd: Path, env: Mapping[str, str], stdin: str = ""
    ) -> tuple[int, str, str]:
        """Return the exit code of a command, its output and its errors."""
        with tempfile.TemporaryDirectory() as directory:
            files = [Path(directory, name) for name in ("stdin", "stdout", "stderr")]
            files[0].write_text(stdin)
            request = {
                "words": words,
                "cwd": str(cwd),
                "env": dict(env),
                "files": [str(file) for file in files],
            }
            code = self._server.ask(request)
            return code, files[1].read_text(), files[2].read_text()

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="session")
def prepared_commands() -> Iterator[PreparedCommands]:
    commands = PreparedCommands()
    yield commands
    commands.close()


def _serve() -> None:
    """Fork a process for each request; only the forked ones get past the loop before the end."""
    from ops.cli.main import main  # noqa: PLC0415 - for this process only

    for name in _PREPARED:
        importlib.import_module(name)
    assert _READS_ENVIRONMENT not in sys.modules
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(**json.loads(line))
            main()
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer


def _become(words: list[str], cwd: str, env: dict[str, str], files: list[str]) -> None:
    """Be a command that a shell starts."""
    signal.alarm(int(scaled(_DEADLINE_S)))
    os.chdir(cwd)
    become(env, files)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    sys.argv = ["semantic", *words]


if __name__ == "__main__":
    _serve()
