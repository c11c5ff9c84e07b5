"""``JobQueue``, on the fake, on fakeredis and on both brokers, with the worker's side of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pytest
from dramatiq import MessageProxy

from domain.errors import QueueUnavailable
from domain.job.ports import JobQueue
from domain.values import JobId, Priority
from ops.broker.client import Keys, connect, queue_name
from ops.broker.dramatiq_queue import (
    BlockingConsumer,
    BlockingRedisBroker,
    DramatiqJobQueue,
)
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.job_queue import ENGINE, FakeJobQueue
from tests.support.processes.brokers import client_of

A, B, C = (JobId(f"job-{letter}") for letter in "abc")
INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH
#: With characters that end or separate parts of a key.
MODEL = "owner/a model.ring@2"


class Consumer(Protocol):
    """The worker's side."""

    def take(self) -> JobId | None: ...

    def ack(self, job_id: JobId) -> None: ...

    def drop(self, job_id: JobId) -> None:
        """Drop a job without an ``ack``, like a worker whose ``ack`` was lost."""


class FakeConsumer:
    def __init__(self, queue: FakeJobQueue, model: str | None = None) -> None:
        self._queue = queue
        self._model = model
        self._held: set[JobId] = set()

    def take(self) -> JobId | None:
        self._queue.requeue_lost(INTERACTIVE, ENGINE, self._held, self._model)
        job_id = self._queue.take(model=self._model)
        if job_id is not None:
            self._held.add(job_id)
        return job_id

    def ack(self, job_id: JobId) -> None:
        self._queue.ack(job_id)
        self.drop(job_id)

    def drop(self, job_id: JobId) -> None:
        self._held.discard(job_id)


class RedisConsumer:
    def __init__(self, consumer: BlockingConsumer) -> None:
        self._consumer = consumer
        self._held: dict[JobId, MessageProxy] = {}

    def take(self) -> JobId | None:
        message = next(self._consumer)
        if message is None:
            return None
        (job_id,) = message.args
        self._held[job_id] = message
        return JobId(job_id)

    def ack(self, job_id: JobId) -> None:
        self._consumer.ack(self._held.pop(job_id))

    def drop(self, job_id: JobId) -> None:
        self._consumer.queued_message_ids.discard(job_id)


@dataclass
class QueueUnderTest:
    """A queue with a consumer of the shared line, one of the line of ``MODEL``, and a restart."""

    queue: JobQueue
    consumer: Consumer
    bound: Consumer
    requeue_all: Callable[[], object]


@pytest.fixture(params=["fake", "fakeredis", "valkey", "redis"])
def broker(request: pytest.FixtureRequest, keys: Keys) -> Iterator[QueueUnderTest]:
    if request.param == "fake":
        fake = FakeJobQueue()
        yield QueueUnderTest(
            fake,
            FakeConsumer(fake),
            FakeConsumer(fake, MODEL),
            partial(fake.requeue_unacked, ENGINE),
        )
        return
    client = client_of(request, request.param)
    broker = BlockingRedisBroker(client, keys, broker_id=ENGINE, unacked_check_s=0)
    # One message at a time, so that the others can be seen to wait.
    consumer = broker.consume(INTERACTIVE.value, prefetch=1, timeout=50)
    line = queue_name(INTERACTIVE, MODEL)
    broker.declare_queue(line)
    broker.requeue_all_unacked()
    # The next run of the worker has another model, so it declares another line.
    restarted = BlockingRedisBroker(client, keys, broker_id=ENGINE)
    bound = broker.consume(line, prefetch=1, timeout=50)
    yield QueueUnderTest(
        DramatiqJobQueue(client, keys),
        RedisConsumer(consumer),
        RedisConsumer(bound),
        restarted.requeue_all_unacked,
    )
    client.close()


def test_jobs_come_out_in_the_order_they_went_in(broker: QueueUnderTest) -> None:
    assert all(broker.queue.enqueue(job, INTERACTIVE) for job in (A, B, C))
    taken = []
    for _ in range(3):
        job = broker.consumer.take()
        assert job is not None
        broker.consumer.ack(job)
        taken.append(job)
    assert taken == [A, B, C]
    assert broker.consumer.take() is None


def test_urgent_jobs_come_out_first_in_their_line(broker: QueueUnderTest) -> None:
    for job, urgency in ((A, 0), (B, 9), (C, 9)):
        assert broker.queue.enqueue(job, INTERACTIVE, line="a", urgency=urgency)
    assert not broker.queue.enqueue(A, INTERACTIVE, line="a", urgency=9)
    other = JobId("job-d")
    broker.queue.enqueue(other, INTERACTIVE, line="d")
    taken = []
    for _ in range(4):
        job_id = broker.consumer.take()
        assert job_id is not None
        broker.consumer.ack(job_id)
        taken.append(job_id)
    assert taken == [B, other, C, A]


def test_job_that_waits_is_not_queued_twice(broker: QueueUnderTest) -> None:
    assert broker.queue.enqueue(A, INTERACTIVE)
    assert not broker.queue.enqueue(A, INTERACTIVE)
    assert broker.consumer.take() == A
    broker.consumer.ack(A)
    assert broker.consumer.take() is None


def test_job_unacknowledged_is_not_queued_again_until_it_is_dropped(broker: QueueUnderTest) -> None:
    broker.queue.enqueue(A, INTERACTIVE)
    assert broker.consumer.take() == A
    assert not broker.queue.enqueue(A, INTERACTIVE)
    broker.consumer.ack(A)
    assert broker.queue.enqueue(A, INTERACTIVE)


def test_job_that_is_unacknowledged_only_at_the_broker_is_delivered_again(
    broker: QueueUnderTest,
) -> None:
    for job in (A, B):
        broker.queue.enqueue(job, INTERACTIVE)
    assert broker.consumer.take() == A
    broker.consumer.drop(A)
    assert not broker.queue.enqueue(A, INTERACTIVE)
    assert broker.consumer.take() == A
    broker.consumer.ack(A)
    assert broker.queue.enqueue(A, INTERACTIVE)


def test_job_that_a_stopping_consumer_gave_back_is_held_no_more(
    valkey_url: str, keys: Keys
) -> None:
    client = connect(valkey_url)
    broker = BlockingRedisBroker(client, keys, broker_id=ENGINE)
    DramatiqJobQueue(client, keys).enqueue(A, INTERACTIVE)
    for _ in range(2):  # the second consumer of the same worker
        consumer = broker.consume(INTERACTIVE.value, prefetch=1, timeout=50)
        message = next(consumer)
        assert message is not None
        assert consumer.queued_message_ids == {A}
        consumer.requeue([message])
    client.close()


def test_removed_job_never_comes_out(broker: QueueUnderTest) -> None:
    for job in (A, B, C):
        broker.queue.enqueue(job, INTERACTIVE)
    assert broker.queue.remove(B, INTERACTIVE)
    assert not broker.queue.remove(B, INTERACTIVE)
    assert broker.consumer.take() == A
    broker.consumer.ack(A)
    assert broker.consumer.take() == C


def test_removed_job_can_be_queued_again(broker: QueueUnderTest) -> None:
    broker.queue.enqueue(A, INTERACTIVE)
    broker.queue.remove(A, INTERACTIVE)
    assert broker.queue.enqueue(A, INTERACTIVE)
    assert broker.consumer.take() == A


def test_unacknowledged_job_cannot_be_removed(broker: QueueUnderTest) -> None:
    broker.queue.enqueue(A, INTERACTIVE)
    broker.consumer.take()
    assert not broker.queue.remove(A, INTERACTIVE)


def test_job_of_another_queue_or_of_none_is_neither_found_nor_removed(
    broker: QueueUnderTest,
) -> None:
    broker.queue.enqueue(A, BATCH)
    assert not broker.queue.remove(A, INTERACTIVE)
    assert not broker.queue.remove(B, BATCH)
    assert broker.queue.remove(A, BATCH)


def test_bound_job_waits_in_the_line_of_its_model_alone(broker: QueueUnderTest) -> None:
    assert broker.queue.enqueue(A, INTERACTIVE, line="one", model=MODEL)
    assert not broker.queue.enqueue(A, INTERACTIVE, line="one", model=MODEL)
    assert broker.queue.enqueue(B, INTERACTIVE, line="one", model="another.model")
    assert broker.queue.enqueue(C, INTERACTIVE, line="one")
    assert taken(broker) == [C]
    assert broker.bound.take() == A
    broker.bound.ack(A)
    assert broker.bound.take() is None
    assert not broker.queue.remove(B, INTERACTIVE, line="one", model=MODEL)
    assert broker.queue.remove(B, INTERACTIVE, line="one", model="another.model")


def test_jobs_in_hand_at_a_swap_go_back_to_the_line_of_their_model(broker: QueueUnderTest) -> None:
    broker.queue.enqueue(A, INTERACTIVE, model=MODEL)
    assert broker.bound.take() == A
    broker.bound.drop(A)  # the worker ended
    broker.requeue_all()
    assert broker.consumer.take() is None
    assert broker.queue.remove(A, INTERACTIVE, model=MODEL)


def taken(broker: QueueUnderTest) -> list[JobId]:
    """Take and finish what waits, one by one."""
    ran = []
    while (job := broker.consumer.take()) is not None:
        broker.consumer.ack(job)
        ran.append(job)
    return ran


def test_agents_take_turns_however_many_jobs_one_has(broker: QueueUnderTest) -> None:
    busy = [JobId(f"job-a{number:02d}") for number in range(20)]
    for job in busy:
        broker.queue.enqueue(job, INTERACTIVE, line="busy")
    first = broker.consumer.take()
    assert first is not None
    broker.consumer.ack(first)
    broker.queue.enqueue(B, INTERACTIVE, line="late")
    broker.queue.enqueue(C, INTERACTIVE)
    ran = [first, *taken(broker)]
    assert {B, C} <= set(ran[:4])
    assert [job for job in ran if job in busy] == busy


def test_jobs_of_an_agent_come_as_accepted_whatever_order_they_are_queued_in(
    broker: QueueUnderTest,
) -> None:
    for job in (C, A, B):
        broker.queue.enqueue(job, INTERACTIVE, line="one")
    assert taken(broker) == [A, B, C]


def test_agent_whose_jobs_were_removed_or_taken_comes_back_like_a_new_one(
    broker: QueueUnderTest,
) -> None:
    broker.queue.enqueue(A, INTERACTIVE, line="one")
    assert not broker.queue.remove(A, INTERACTIVE, line="two")
    assert broker.queue.remove(A, INTERACTIVE, line="one")
    broker.queue.enqueue(B, INTERACTIVE, line="two")
    broker.queue.enqueue(A, INTERACTIVE, line="one")
    assert taken(broker) == [B, A]
    broker.queue.enqueue(C, INTERACTIVE, line="one")
    assert taken(broker) == [C]


def test_broker_that_is_down_is_named_so() -> None:
    fake = FakeBroker()
    fake.down = True
    gone = DramatiqJobQueue(connect("redis://127.0.0.1:9/0"), Keys("t"))
    for queue in (fake.queue, gone):
        with pytest.raises(QueueUnavailable):
            queue.enqueue(A, INTERACTIVE)
        with pytest.raises(QueueUnavailable):
            queue.remove(A, INTERACTIVE)
