"""What Dramatiq's own Redis broker does not do for jobs, beside ``BlockingRedisBroker``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dramatiq.brokers.redis
import fakeredis
import pytest
import redis
from dramatiq import Consumer
from dramatiq.brokers.redis import MAINTENANCE_SCALE, RedisBroker
from dramatiq.common import current_millis
from dramatiq.errors import ConnectionClosed

from domain.values import JobId, Priority
from ops.broker.client import Keys
from ops.broker.dramatiq_queue import (
    HEARTBEAT_TIMEOUT_MS,
    LINE,
    BlockingRedisBroker,
    message_of,
)

QUEUE = Priority.BATCH.value
KEYS = Keys("t")
FETCH_MS = 50


@pytest.fixture
def server() -> fakeredis.FakeServer:
    return fakeredis.FakeServer(server_type="valkey")


def _plain(server: fakeredis.FakeServer) -> RedisBroker:
    return RedisBroker(  # type: ignore[no-untyped-call]  # Dramatiq leaves it untyped
        client=fakeredis.FakeRedis(server=server),
        middleware=[],
        namespace=KEYS.prefix,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
        maintenance_chance=MAINTENANCE_SCALE,
    )


def _ours(server: fakeredis.FakeServer) -> RedisBroker:
    return BlockingRedisBroker(fakeredis.FakeRedis(server=server), KEYS)


Make = Callable[[fakeredis.FakeServer], RedisBroker]


def _sent(broker: RedisBroker, *jobs: tuple[str, str]) -> Consumer:
    """Enqueue jobs of lines; return a consumer with room for all of them."""
    for line, job in jobs:
        broker.enqueue(message_of(JobId(job), QUEUE).copy(options={LINE: line}))
    return broker.consume(QUEUE, prefetch=10, timeout=FETCH_MS)


def _taken(consumer: Consumer) -> list[str]:
    found = []
    while (message := next(consumer)) is not None:
        found.append(message.args[0])
    return found


@pytest.mark.parametrize(("make", "expected"), [(_plain, ["a", "a"]), (_ours, ["a"])])
def test_job_that_is_enqueued_twice(
    server: fakeredis.FakeServer, make: Make, expected: list[str]
) -> None:
    assert _taken(_sent(make(server), ("x", "a"), ("x", "a"))) == expected


@pytest.mark.parametrize(
    ("make", "expected"), [(_plain, ["a1", "a2", "a3", "b1"]), (_ours, ["a1", "b1", "a2", "a3"])]
)
def test_job_behind_many_of_another_agent(
    server: fakeredis.FakeServer, make: Make, expected: list[str]
) -> None:
    jobs = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")]
    assert _taken(_sent(make(server), *jobs)) == expected


@pytest.mark.parametrize(("make", "is_delivered"), [(_plain, False), (_ours, True)])
def test_job_that_arrives_while_the_consumer_waits(
    server: fakeredis.FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    *,
    is_delivered: bool,
) -> None:
    broker, producer = make(server), make(server)
    consumer = _sent(broker)
    waits = _WaitsOnce(lambda: producer.enqueue(message_of(JobId("a"), QUEUE)))
    monkeypatch.setattr(dramatiq.brokers.redis, "time", SimpleNamespace(sleep=waits))
    monkeypatch.setattr(broker.client, "blpop", waits.before(broker.client.blpop))
    assert (next(consumer) is not None) == is_delivered
    assert waits.count == 1


class _WaitsOnce:
    """A wait during which something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens
        self.count = 0

    def __call__(self, *_args: object, **_kwargs: object) -> None:
        self.count += 1
        self._happens()

    def before(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """Return a command that begins after what happens."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self()
            return command(*args, **kwargs)

        return run


@pytest.mark.parametrize(("make", "expected"), [(_plain, ["a"]), (_ours, [])])
def test_message_of_a_live_worker_beside_a_worker_whose_clock_is_ahead(
    server: fakeredis.FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    expected: list[str],
) -> None:
    assert _taken(_sent(make(server), ("x", "a"))) == ["a"]
    now_ms = current_millis()
    monkeypatch.setattr(dramatiq.brokers.redis, "current_millis", lambda: now_ms + 3_600_000)
    assert _taken(_sent(make(server))) == expected


def test_consumer_of_a_broker_that_is_away(server: fakeredis.FakeServer) -> None:
    plain, ours = _sent(_plain(server)), _sent(_ours(server))
    assert (next(plain), next(ours)) == (None, None)
    server.connected = False
    with pytest.raises(ConnectionClosed):  # after which a worker waits for three seconds
        next(plain)
    assert next(ours) is None


def test_messages_of_the_last_run_of_a_worker(server: fakeredis.FakeServer) -> None:
    plain, again = _plain(server), _plain(server)
    again.broker_id = plain.broker_id
    assert _taken(_sent(plain, ("x", "a"))) == ["a"]
    assert _taken(_sent(again)) == []
    ours = BlockingRedisBroker(again.client, KEYS, broker_id=plain.broker_id)
    assert ours.requeue_all_unacked() == 1
    assert _taken(_sent(ours)) == ["a"]


def test_messages_that_a_stopping_worker_cannot_requeue(server: fakeredis.FakeServer) -> None:
    for make, error in (
        (_plain, redis.ConnectionError),
        (_ours, ConnectionClosed),
    ):
        consumer = _sent(make(server), ("x", make.__name__))
        message = next(consumer)
        assert message is not None
        server.connected = False
        with pytest.raises(error):  # a worker that stops takes ``ConnectionClosed`` only
            consumer.requeue([message])
        server.connected = True
