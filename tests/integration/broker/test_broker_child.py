"""``python -m ops.broker`` as the supervisor starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from domain.values import JobId, Priority
from ops.broker.address import answers, resolve_broker_url
from ops.broker.client import Keys, connect
from ops.broker.dramatiq_queue import DramatiqJobQueue
from ops.liveness.child import LIFELINE_ENV
from ops.settings.settings import Settings
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.brokers import NO_REDIS_PATH, redis_server
from tests.support.processes.planted_constants import with_constants

KINDS = ["bundled", "redis"]


@contextmanager
def running_broker(
    data_dir: Path, kind: str, *, lifeline: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
    env |= {"SEMANTIC_DATA_DIR": str(data_dir)}
    env = with_constants(env, {"ops.liveness.child.ORPHAN_S": 1.0})
    if kind == "redis":
        redis_server()
    else:
        env["PATH"] = NO_REDIS_PATH
    env |= {LIFELINE_ENV: str(lifeline)} if lifeline is not None else {}
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.broker"],
        env=env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[lifeline] if lifeline is not None else [],
    )
    family = [process.pid]
    try:
        yield process
        family += [child.pid for child in _children(process)]
    finally:
        for pid in family:
            _kill(pid)
        process.wait(scaled(WITHIN_S))
        assert process.stderr is not None
        process.stderr.close()


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def url_of(data_dir: Path) -> str:
    return resolve_broker_url(Settings(data_dir=data_dir), wait_s=WITHIN_S)


@pytest.fixture
def data_dir(short_tmp: Path, tmp_path: Path) -> Path:
    return short_tmp / tmp_path.name


@pytest.mark.parametrize("kind", KINDS)
def test_broker_answers_then_stops_on_sigterm_and_leaves_nothing(data_dir: Path, kind: str) -> None:
    with running_broker(data_dir, kind) as broker:
        url = url_of(data_dir)
        assert url.startswith("unix://")
        children = _children(broker)
        assert len(children) == 1
        broker.terminate()
        assert broker.wait(scaled(WITHIN_S)) == 0
        assert not any(child.is_running() for child in children)
    assert not answers(url)
    assert not (data_dir / "broker.url").exists()


def test_broker_without_redis_on_the_path_is_the_bundled_one(data_dir: Path) -> None:
    with running_broker(data_dir, "bundled") as broker:
        client = connect(url_of(data_dir))
        (server,) = _children(broker)
        assert server.name() == "valkey-server"
        assert client.info("server")["server_name"] == "valkey"
        client.close()


def test_a_machine_without_any_server_is_told_what_to_install(data_dir: Path) -> None:
    no_wheel = {"ops.broker.private_redis.PACKAGE": "no_such_package"}
    done = subprocess.run(
        [sys.executable, "-m", "ops.broker"],
        env=with_constants({"PATH": NO_REDIS_PATH, "SEMANTIC_DATA_DIR": str(data_dir)}, no_wheel),
        capture_output=True,
        timeout=scaled(WITHIN_S),
        check=False,
    )
    assert done.returncode == 78
    assert b"redis-server" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_second_broker_on_one_data_directory_is_refused(data_dir: Path, kind: str) -> None:
    with running_broker(data_dir, kind) as first:
        url = url_of(data_dir)
        with running_broker(data_dir, kind) as second:
            assert second.wait(scaled(WITHIN_S)) == 78
            assert second.stderr is not None
            assert str(first.pid).encode() in second.stderr.read()
        assert url_of(data_dir) == url


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_killed_broker_process_takes_redis_with_it(data_dir: Path) -> None:
    with running_broker(data_dir, "redis") as broker:
        url_of(data_dir)
        (server,) = _children(broker)
        broker.kill()
        server.wait(scaled(WITHIN_S))


@pytest.mark.parametrize("kind", KINDS)
def test_broker_ends_when_its_supervisor_is_gone(data_dir: Path, kind: str) -> None:
    heard, held = os.pipe()
    with running_broker(data_dir, kind, lifeline=heard) as broker:
        os.close(heard)
        url = url_of(data_dir)
        os.close(held)
        assert broker.wait(scaled(WITHIN_S)) == 0
        assert not answers(url)


@pytest.mark.parametrize("kinds", [("redis", "redis"), ("redis", "bundled"), ("bundled", "redis")])
def test_killed_server_ends_the_broker_and_its_successor_has_the_data(
    data_dir: Path, kinds: tuple[str, str]
) -> None:
    """A redis-server that is installed or removed later reads what the other one wrote."""
    keys = Keys("t")
    with running_broker(data_dir, kinds[0]) as broker:
        client = connect(url_of(data_dir))
        DramatiqJobQueue(client, keys).enqueue(JobId("job-1"), Priority.BATCH)
        # A rewrite leaves a base file in the writer's own format.
        client.bgrewriteaof()
        wait_until(lambda: not _is_rewriting(client))
        # The server hands a change to the kernel before it answers, so its death costs nothing.
        (server,) = _children(broker)
        server.kill()
        assert broker.wait(scaled(WITHIN_S)) == 1
    with running_broker(data_dir, kinds[1]):
        assert url_of(data_dir) == url_of(data_dir)
        assert client.zrange(keys.agent_queue(Priority.BATCH, None), 0, -1) == [b"job-1"]
        client.close()


def _is_rewriting(client: redis.Redis) -> bool:
    state = client.info("persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def test_server_left_behind_is_replaced_and_its_data_kept(data_dir: Path) -> None:
    binary = redis_server().path
    directory = data_dir / "broker"
    directory.mkdir(parents=True)
    left_behind = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", "redis.sock", "--appendonly", "yes", "--save", ""],
        cwd=directory,
        stdout=subprocess.DEVNULL,
    )
    try:
        client = connect(f"unix://{directory}/redis.sock")
        wait_until(lambda: answers(f"unix://{directory}/redis.sock"))
        client.set("kept", "yes")
        with running_broker(data_dir, "redis"):
            url_of(data_dir)
            assert left_behind.wait(scaled(WITHIN_S)) == 0
            wait_until(lambda: answers(url_of(data_dir)))
            assert client.get("kept") == b"yes"
            client.close()
    finally:
        left_behind.kill()
        left_behind.wait(scaled(WITHIN_S))
