"""Real brokers for tests: a redis-server and the bundled Valkey, each private to the session.

Take ``broker_url`` for a test to run on both, ``redis_url`` or ``valkey_url`` for one of them.
``client_of`` has fakeredis, which runs in the test's process, as a third one.
Each test gets ``keys`` with a prefix of its own, so that nothing is seen twice.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
import redis

from ops.broker import private_redis
from ops.broker.client import Keys, connect
from ops.broker.private_redis import PrivateRedis, ServerBinary

#: A ``PATH`` without redis-server, so that a private broker is the bundled Valkey.
NO_REDIS_PATH = "/nonexistent"


def redis_server() -> ServerBinary:
    """Return the redis-server, or skip; without one in CI that is a failure."""
    server = private_redis.redis_server()
    if server is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have redis-server")
        pytest.skip("there is no redis-server on the PATH")
    return server


def valkey_server() -> ServerBinary:
    """Return the bundled server."""
    server = private_redis.bundled_server()
    assert server is not None
    return server


@pytest.fixture(scope="session")
def short_tmp() -> Iterator[Path]:
    """A directory whose path has room for a socket's name."""
    directory = Path(tempfile.mkdtemp(prefix="sem-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_url(short_tmp: Path) -> Iterator[str]:
    """A redis-server of this session."""
    yield from _served(redis_server(), short_tmp / "redis")


@pytest.fixture(scope="session")
def valkey_url(short_tmp: Path) -> Iterator[str]:
    """A bundled Valkey of this session."""
    yield from _served(valkey_server(), short_tmp / "valkey")


def client_of(request: pytest.FixtureRequest, kind: str) -> redis.Redis:
    """Return a client of ``fakeredis``, of ``valkey`` or of ``redis``."""
    if kind == "fakeredis":
        server = fakeredis.FakeServer(server_type="valkey")
        client: redis.Redis = fakeredis.FakeRedis(server=server)
        return client
    return connect(str(request.getfixturevalue(f"{kind}_url")))


def _served(server: ServerBinary, directory: Path) -> Iterator[str]:
    private = PrivateRedis(server, directory=directory, socket=directory.with_suffix(".sock"))
    private.start()
    yield private.url
    private.stop()


@pytest.fixture(params=["valkey", "redis"])
def broker_url(request: pytest.FixtureRequest) -> str:
    """Each kind of broker in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def keys() -> Keys:
    """Redis keys with a prefix of this test."""
    return Keys(f"t{uuid.uuid4().hex[:8]}")


@pytest.fixture
def client(broker_url: str) -> Iterator[redis.Redis]:
    """A client of the broker under test."""
    connected = connect(broker_url)
    yield connected
    connected.close()
