"""A PostgreSQL server of the test session on a unix socket; each test has its own database.

It sorts texts by the rules of a language, the default of many installations.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.log.migrate import upgrade
from tests.support.polling import scaled, wait_until

READY_WITHIN_S = 60.0
_DEBIAN = Path("/usr/lib/postgresql")
_TEMPLATE = "log_template"


def postgres_programs() -> Path:
    """Return the directory of initdb and postgres, or skip; without them in CI that is a failure.

    Debian keeps them off the PATH.
    """
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    if os.environ.get("CI"):
        pytest.fail("CI must have PostgreSQL")
    pytest.skip("PostgreSQL is not installed: there is no initdb")


class PostgresServer:
    """A cluster in its own directory; root runs the server as the user ``postgres``.

    Args:
        programs: Where initdb and postgres are.
        directory: Empty, with a short path; holds the data and the socket.
    """

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._directory = directory
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(directory, owner.pw_uid, owner.pw_gid)
            self._identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

    def create(self) -> None:
        """Make the cluster."""
        arguments = ["--username=semantic", "--auth=trust", "--no-sync", "--encoding=UTF8"]
        rules = ["--locale=C", "--locale-provider=icu", "--icu-locale=en-US"]
        subprocess.run(
            [self._programs / "initdb", "--pgdata", self._data, *arguments, *rules],
            cwd=self._directory,
            check=True,
            capture_output=True,
            timeout=scaled(READY_WITHIN_S),
            **self._identity,
        )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._directory),
            # A killed server finds its writes; only a power cut would lose them.
            "fsync": "off",
            "logging_collector": "off",
        }
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._programs / "postgres",
                    *("-D", self._data),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._identity,
            )
        wait_until(self._answers, within_s=READY_WITHIN_S)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT cuts connections and shuts down, SIGQUIT is like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(scaled(READY_WITHIN_S))
            self._process = None

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://semantic@/{database}?host={self._directory}"

    def run(self, statement: str) -> None:
        """Run a statement that administers the server."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "server.log").read_text()
        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this session, with an empty log that each test gets a copy of."""
    programs = postgres_programs()
    with tempfile.TemporaryDirectory(prefix="sem-pg-", ignore_cleanup_errors=True) as directory:
        server = PostgresServer(programs, Path(directory))
        server.create()
        server.start()
        try:
            server.run(f"CREATE DATABASE {_TEMPLATE}")
            upgrade(server.url(_TEMPLATE))
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # nothing of it is wanted any more


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty log with its tables, of this test alone."""
    with new_database(postgres, template=_TEMPLATE) as url:
        yield url


@pytest.fixture
def bare_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A database without tables."""
    with new_database(postgres) as url:
        yield url


@contextmanager
def new_database(server: PostgresServer, *, template: str = "template1") -> Iterator[str]:
    """Create a database, and drop it on exit with all its connections."""
    name = f"log_{uuid.uuid4().hex}"
    server.run(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.url(name)
    server.run(f"DROP DATABASE {name} WITH (FORCE)")
