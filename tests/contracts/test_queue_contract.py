"""``JobQueue``, on the fake and on both brokers, with the worker's side of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest
from dramatiq import MessageProxy

from domain.errors import QueueUnavailable
from domain.job.ports import JobQueue
from domain.values import JobId, Priority
from ops.adapters.redis.client import Keys, connect
from ops.adapters.redis.dramatiq_queue import (
    BlockingConsumer,
    BlockingRedisBroker,
    DramatiqJobQueue,
)
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.job_queue import ENGINE, FakeJobQueue

A, B, C = (JobId(f"job-{letter}") for letter in "abc")
INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


class Hand(Protocol):
    """The worker's side."""

    def take(self) -> JobId | None: ...

    def ack(self, job_id: JobId) -> None: ...

    def drop(self, job_id: JobId) -> None:
        """Hold a job no more without a word to the broker, as one that lost an ``ack`` since."""


class FakeHand:
    def __init__(self, queue: FakeJobQueue) -> None:
        self._queue = queue
        self._held: set[JobId] = set()

    def take(self) -> JobId | None:
        self._queue.let_go(INTERACTIVE, ENGINE, self._held)
        job_id = self._queue.take()
        if job_id is not None:
            self._held.add(job_id)
        return job_id

    def ack(self, job_id: JobId) -> None:
        self._queue.ack(job_id)
        self.drop(job_id)

    def drop(self, job_id: JobId) -> None:
        self._held.discard(job_id)


class ConsumerHand:
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
class Line:
    queue: JobQueue
    hand: Hand


@pytest.fixture(params=["fake", "trial", "redis"])
def line(request: pytest.FixtureRequest, keys: Keys) -> Iterator[Line]:
    if request.param == "fake":
        fake = FakeJobQueue()
        yield Line(fake, FakeHand(fake))
        return
    client = connect(str(request.getfixturevalue(f"{request.param}_url")))
    broker = BlockingRedisBroker(client, keys, broker_id=ENGINE, unacked_check_s=0)
    consumer = broker.consume(INTERACTIVE.value, prefetch=1, timeout=50)
    # One message at a time, so that the others can be seen to wait.
    yield Line(DramatiqJobQueue(client, keys), ConsumerHand(consumer))
    client.close()


def test_jobs_come_out_in_the_order_they_went_in(line: Line) -> None:
    assert all(line.queue.enqueue(job, INTERACTIVE) for job in (A, B, C))
    taken = []
    for _ in range(3):
        job = line.hand.take()
        assert job is not None
        line.hand.ack(job)
        taken.append(job)
    assert taken == [A, B, C]
    assert line.hand.take() is None


def test_job_that_waits_is_not_queued_twice(line: Line) -> None:
    assert line.queue.enqueue(A, INTERACTIVE)
    assert not line.queue.enqueue(A, INTERACTIVE)
    assert line.hand.take() == A
    line.hand.ack(A)
    assert line.hand.take() is None


def test_job_in_hand_is_not_queued_again_until_it_is_let_go(line: Line) -> None:
    line.queue.enqueue(A, INTERACTIVE)
    assert line.hand.take() == A
    assert not line.queue.enqueue(A, INTERACTIVE)
    line.hand.ack(A)
    assert line.queue.enqueue(A, INTERACTIVE)


def test_job_that_is_in_a_hand_only_by_the_brokers_word_comes_out_again(line: Line) -> None:
    for job in (A, B):
        line.queue.enqueue(job, INTERACTIVE)
    assert line.hand.take() == A
    line.hand.drop(A)
    assert not line.queue.enqueue(A, INTERACTIVE)
    assert line.hand.take() == A
    line.hand.ack(A)
    assert line.queue.enqueue(A, INTERACTIVE)


def test_job_that_a_stopping_consumer_gave_back_is_held_no_more(trial_url: str, keys: Keys) -> None:
    client = connect(trial_url)
    broker = BlockingRedisBroker(client, keys, broker_id=ENGINE)
    DramatiqJobQueue(client, keys).enqueue(A, INTERACTIVE)
    for _ in range(2):  # the second consumer of the same worker
        consumer = broker.consume(INTERACTIVE.value, prefetch=1, timeout=50)
        message = next(consumer)
        assert message is not None
        assert consumer.queued_message_ids == {A}
        consumer.requeue([message])
    client.close()


def test_removed_job_never_comes_out(line: Line) -> None:
    for job in (A, B, C):
        line.queue.enqueue(job, INTERACTIVE)
    assert line.queue.remove(B, INTERACTIVE)
    assert not line.queue.remove(B, INTERACTIVE)
    assert line.hand.take() == A
    line.hand.ack(A)
    assert line.hand.take() == C


def test_removed_job_can_be_queued_again(line: Line) -> None:
    line.queue.enqueue(A, INTERACTIVE)
    line.queue.remove(A, INTERACTIVE)
    assert line.queue.enqueue(A, INTERACTIVE)
    assert line.hand.take() == A


def test_job_in_hand_cannot_be_removed(line: Line) -> None:
    line.queue.enqueue(A, INTERACTIVE)
    line.hand.take()
    assert not line.queue.remove(A, INTERACTIVE)


def test_job_of_another_queue_or_of_none_is_neither_found_nor_removed(line: Line) -> None:
    line.queue.enqueue(A, BATCH)
    assert not line.queue.remove(A, INTERACTIVE)
    assert not line.queue.remove(B, BATCH)
    assert line.queue.remove(A, BATCH)


def taken(line: Line) -> list[JobId]:
    """Take and finish what waits, one by one."""
    ran = []
    while (job := line.hand.take()) is not None:
        line.hand.ack(job)
        ran.append(job)
    return ran


def test_agents_take_turns_however_many_jobs_one_has(line: Line) -> None:
    busy = [JobId(f"job-a{number:02d}") for number in range(20)]
    for job in busy:
        line.queue.enqueue(job, INTERACTIVE, agent="busy")
    first = line.hand.take()
    assert first is not None
    line.hand.ack(first)
    line.queue.enqueue(B, INTERACTIVE, agent="late")
    line.queue.enqueue(C, INTERACTIVE)
    ran = [first, *taken(line)]
    assert {B, C} <= set(ran[:4])
    assert [job for job in ran if job in busy] == busy


def test_jobs_of_an_agent_come_as_accepted_whatever_order_they_are_queued_in(line: Line) -> None:
    for job in (C, A, B):
        line.queue.enqueue(job, INTERACTIVE, agent="one")
    assert taken(line) == [A, B, C]


def test_agent_whose_jobs_were_removed_or_taken_comes_back_like_a_new_one(line: Line) -> None:
    line.queue.enqueue(A, INTERACTIVE, agent="one")
    assert not line.queue.remove(A, INTERACTIVE, agent="two")
    assert line.queue.remove(A, INTERACTIVE, agent="one")
    line.queue.enqueue(B, INTERACTIVE, agent="two")
    line.queue.enqueue(A, INTERACTIVE, agent="one")
    assert taken(line) == [B, A]
    line.queue.enqueue(C, INTERACTIVE, agent="one")
    assert taken(line) == [C]


def test_broker_that_is_down_is_named_so() -> None:
    fake = FakeBroker()
    fake.down = True
    gone = DramatiqJobQueue(connect("redis://127.0.0.1:9/0"), Keys("t"))
    for queue in (fake.queue, gone):
        with pytest.raises(QueueUnavailable):
            queue.enqueue(A, INTERACTIVE)
        with pytest.raises(QueueUnavailable):
            queue.remove(A, INTERACTIVE)
