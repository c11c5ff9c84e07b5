"""A broker that answers reads and refuses writes, as with a full disk, a full memory or no replica.

The servers report each of these with the same kind of reply; two of them can be configured.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from domain.errors import QueueUnavailable
from domain.values import JobStatus
from ops.broker.client import Keys
from ops.broker.items import RedisItemBacklog, RedisItemSink
from tests.support.builders.job_world import JobWorld
from worker.actors import _run_to_the_end

#: Options of the server with which it refuses writes, and their values.
REFUSALS = {"min-replicas-to-write": 1, "maxmemory": 1}


@pytest.fixture(params=REFUSALS)
def refusal(request: pytest.FixtureRequest, client: redis.Redis) -> Iterator[str]:
    yield request.param
    client.config_set(request.param, 0)


def test_reads_are_answered_and_every_write_is_refused(
    client: redis.Redis, keys: Keys, refusal: str
) -> None:
    with JobWorld({"hi": "Hello."}) as world:
        job_id = world.submit()
        world.run(job_id)
        items = [(job_id, item) for item in world.items(job_id)]
    sink = RedisItemSink(client, keys, items_max=1000, ttl_s=60)
    backlog = RedisItemBacklog(client, keys)
    backlog.require_writable()
    sink.publish(items[:1])
    client.config_set(refusal, REFUSALS[refusal])
    with pytest.raises(QueueUnavailable):
        backlog.require_writable()
    with pytest.raises(QueueUnavailable):
        sink.publish(items[1:])
    with pytest.raises(QueueUnavailable):
        backlog.forget(job_id, through=1)
    assert backlog.read(job_id) == (items[0][1],)


def test_refused_writes_delay_a_job_and_append_no_event(
    client: redis.Redis, keys: Keys, refusal: str
) -> None:
    sink = RedisItemSink(client, keys, items_max=1000, ttl_s=60)
    backlog = RedisItemBacklog(client, keys)
    client.config_set(refusal, REFUSALS[refusal])
    pauses: list[float] = []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            client.config_set(refusal, 0 if len(pauses) >= 5 else REFUSALS[refusal])
            return False

    with JobWorld({"hi": "Hello."}) as world:
        items = world.broker.items
        items.publish = sink.publish  # type: ignore[method-assign]  # the real broker
        items.read = backlog.read  # type: ignore[method-assign]  # the real broker
        items.require_writable = backlog.require_writable  # type: ignore[method-assign]  # the real broker
        job_id = world.accept(command={"attempts_max": 1, "worker_deaths_max": 1}).job_id
        waits = Waits()
        _run_to_the_end(job_id, world.runner, waits, waits.wait)
        assert world.job(job_id).status is JobStatus.COMPLETED
        assert world.types(job_id) == ["JobSubmitted", "AttemptStarted", "JobCompleted"]
        assert world.text(job_id) == "Hello."
    assert len(pauses) == 5
