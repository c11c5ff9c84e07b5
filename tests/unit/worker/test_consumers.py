"""Both queues get their threads, without a warning of Dramatiq."""

from __future__ import annotations

import logging
import threading

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.worker import WorkerThread

from domain.values import Priority
from ops.adapters.redis.client import queue_name
from worker.consumers import IDLE_S, Consumers

PATIENCE_S = 60.0


def test_two_queues_are_served_and_no_warning_is_given(caplog: pytest.LogCaptureFixture) -> None:
    broker = StubBroker(middleware=[])
    delivered = {priority: threading.Event() for priority in Priority}
    actors = [
        dramatiq.actor(broker=broker, actor_name=priority.value, queue_name=priority.value)(
            delivered[priority].set
        )
        for priority in Priority
    ]
    consumers = Consumers(broker, dict.fromkeys(Priority, 1))
    with caplog.at_level(logging.WARNING):
        consumers.start()
    try:
        for actor in actors:
            actor.send()
        assert all(event.wait(PATIENCE_S) for event in delivered.values())
        assert not caplog.records
    finally:
        consumers.stop(lambda: PATIENCE_S)
    broker.close()


def test_worker_takes_from_the_line_of_its_model_too() -> None:
    broker = StubBroker(middleware=[])
    line = queue_name(Priority.BATCH, "a model")
    delivered = threading.Event()
    actor = dramatiq.actor(broker=broker, actor_name="one", queue_name=Priority.BATCH.value)(
        delivered.set
    )
    broker.declare_queue(line)
    consumers = Consumers(broker, {Priority.BATCH: 1}, models=["a model"])
    consumers.start()
    try:
        broker.enqueue(actor.message().copy(queue_name=line))
        assert delivered.wait(PATIENCE_S)
    finally:
        consumers.stop(lambda: PATIENCE_S)
    broker.close()


def test_idle_threads_end_with_the_stop_although_they_look_for_messages_rarely() -> None:
    broker = StubBroker(middleware=[])
    broker.declare_queue(Priority.BATCH.value)
    before = set(threading.enumerate())
    consumers = Consumers(broker, {Priority.BATCH: 2})
    consumers.start()
    threads = [one for one in threading.enumerate() if isinstance(one, WorkerThread)]
    mine = [thread for thread in threads if thread not in before]
    assert len(mine) == 2
    assert {thread.timeout for thread in mine} == {IDLE_S}
    consumers.stop(lambda: PATIENCE_S)
    assert not any(thread.is_alive() for thread in mine)
    broker.close()
