"""Real brokers for tests: a redis-server child, and the trial server, each private to the session.

Take ``broker_url`` for a test to run on both, ``redis_url`` or ``trial_url`` for one of them.
Each test gets ``keys`` with a prefix of its own, so that nothing is seen twice.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ops.adapters.redis.client import Keys, connect
from ops.broker.private_redis import PrivateRedis
from ops.broker.trial import TrialBroker


def redis_binary() -> str:
    """Return the path of redis-server, or skip; without one in CI that is a failure."""
    binary = shutil.which("redis-server")
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have redis-server")
        pytest.skip("there is no redis-server on the PATH")
    return binary


@pytest.fixture(scope="session")
def short_tmp() -> Iterator[Path]:
    """A directory whose path has room for a socket's name."""
    directory = Path(tempfile.mkdtemp(prefix="sem-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_url(short_tmp: Path) -> Iterator[str]:
    """A redis-server of this session."""
    server = PrivateRedis(
        redis_binary(), directory=short_tmp / "redis", socket=short_tmp / "redis.sock"
    )
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def trial_url(short_tmp: Path) -> Iterator[str]:
    """A trial server of this session, in this process."""
    server = TrialBroker(short_tmp / "trial.port")
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(params=["trial", "redis"])
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
