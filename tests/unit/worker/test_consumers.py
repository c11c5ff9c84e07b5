"""Every queue gets its threads, on fakeredis."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator

import dramatiq
import fakeredis
import pytest
from dramatiq.worker import WorkerThread

from domain.values import JobId, Priority
from ops.broker.client import Keys, queue_name
from ops.broker.dramatiq_queue import ACTOR_NAME, BlockingRedisBroker, message_of
from tests.support.polling import now_s, scaled
from worker.actors import Consumers, queues_of

PATIENCE_S = 60.0
MODEL = "a model"
INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


@pytest.fixture
def server() -> fakeredis.FakeServer:
    return fakeredis.FakeServer(server_type="valkey")


@pytest.fixture
def broker(server: fakeredis.FakeServer) -> Iterator[BlockingRedisBroker]:
    client = fakeredis.FakeRedis(server=server)
    broker = BlockingRedisBroker(client, Keys("t"), broker_id="engine-0")
    for priority in Priority:
        for name in queues_of(priority, [MODEL]):
            broker.declare_queue(name)
    yield broker
    client.close()


def _left() -> Callable[[], float]:
    """Return the time that is left of a stop that begins now."""
    until_s = now_s() + PATIENCE_S
    return lambda: max(0.0, until_s - now_s())


def _running(broker: BlockingRedisBroker, before: set[threading.Thread]) -> list[WorkerThread]:
    """Return the threads of Dramatiq since ``before``."""
    threads = [one for one in threading.enumerate() if isinstance(one, WorkerThread)]
    return [one for one in threads if one not in before and one.broker is broker]


def test_all_queues_are_served_and_no_warning_is_given(
    broker: BlockingRedisBroker, caplog: pytest.LogCaptureFixture
) -> None:
    ran: queue.Queue[str] = queue.Queue()
    dramatiq.actor(broker=broker, actor_name=ACTOR_NAME, queue_name=INTERACTIVE.value)(ran.put)
    consumers = Consumers(broker, dict.fromkeys(Priority, 1), models=[MODEL])
    with caplog.at_level(logging.WARNING):
        consumers.start()
        names = [queue_name(one, model) for one in Priority for model in (None, MODEL)]
        for name in names:
            broker.enqueue(message_of(JobId(f"job-{name}"), name))
        assert {ran.get(timeout=scaled(PATIENCE_S)) for _ in names} == {
            f"job-{name}" for name in names
        }
        consumers.stop(_left())
    assert not caplog.records


def test_a_full_queue_takes_no_more_and_keeps_no_other_one_waiting(
    broker: BlockingRedisBroker,
) -> None:
    ran: queue.Queue[str] = queue.Queue()
    let_go = threading.Event()

    def run(job_id: str) -> None:
        ran.put(job_id)
        let_go.wait(scaled(PATIENCE_S))

    dramatiq.actor(broker=broker, actor_name=ACTOR_NAME, queue_name=INTERACTIVE.value)(run)
    consumers = Consumers(broker, {INTERACTIVE: 1, BATCH: 2})
    consumers.start()
    try:
        for number in range(5):
            broker.enqueue(message_of(JobId(f"batch-{number}"), BATCH.value))
        assert {ran.get(timeout=scaled(PATIENCE_S)) for _ in range(2)} == {"batch-0", "batch-1"}
        broker.enqueue(message_of(JobId("interactive"), INTERACTIVE.value))
        assert ran.get(timeout=scaled(PATIENCE_S)) == "interactive"
        assert broker.client.scard(broker.keys.unacked(BATCH.value, "engine-0")) == 2
    finally:
        let_go.set()
        consumers.stop(_left())


@pytest.mark.parametrize("is_away", [False, True])
def test_idle_threads_end_with_the_stop_although_nothing_else_wakes_them(
    broker: BlockingRedisBroker, server: fakeredis.FakeServer, *, is_away: bool
) -> None:
    before = set(threading.enumerate())
    consumers = Consumers(broker, {BATCH: 2})
    consumers.start()
    threads = _running(broker, before)
    assert len(threads) == 2
    server.connected = not is_away
    consumers.stop(_left())
    assert not any(thread.is_alive() for thread in threads)


def test_a_job_that_waits_when_the_worker_stops_stays_in_the_queue(
    broker: BlockingRedisBroker,
) -> None:
    ran: queue.Queue[str] = queue.Queue()
    let_go = threading.Event()

    def run(job_id: str) -> None:
        ran.put(job_id)
        let_go.wait(scaled(PATIENCE_S))

    dramatiq.actor(broker=broker, actor_name=ACTOR_NAME, queue_name=INTERACTIVE.value)(run)
    consumers = Consumers(broker, {BATCH: 1})
    consumers.start()
    for number in range(2):
        broker.enqueue(message_of(JobId(f"job-{number}"), BATCH.value))
    assert ran.get(timeout=scaled(PATIENCE_S)) == "job-0"
    stopping = threading.Thread(target=consumers.stop, args=(_left(),))
    stopping.start()
    assert broker.stops.wait(scaled(PATIENCE_S))
    let_go.set()
    stopping.join()
    assert ran.empty()
    assert broker.client.hkeys(broker.keys.messages(BATCH.value)) == [b"job-1"]
