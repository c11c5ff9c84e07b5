"""Both queues get their threads, without a warning of Dramatiq."""

from __future__ import annotations

import logging
import threading

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from domain.values import Priority
from worker.consumers import Consumers

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
        consumers.stop(PATIENCE_S)
    broker.close()
