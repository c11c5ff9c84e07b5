"""Several workers on one queue, on both brokers."""

from __future__ import annotations

import queue
import threading
from collections import Counter

import dramatiq.brokers.redis
import pytest
import redis

from domain.values import JobId, Priority
from ops.broker import dramatiq_queue
from ops.broker.client import Keys, queue_name
from ops.broker.dramatiq_queue import (
    BlockingConsumer,
    BlockingRedisBroker,
    DramatiqJobQueue,
)
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.job_worker import running_worker

INTERACTIVE = Priority.INTERACTIVE
HANDS = ("engine-a", "engine-b")


@pytest.fixture
def jobs(client: redis.Redis, keys: Keys) -> DramatiqJobQueue:
    return DramatiqJobQueue(client, keys)


def _fill(jobs: DramatiqJobQueue, count: int) -> set[JobId]:
    ids = {JobId(f"job-{number:03}") for number in range(count)}
    for job_id in sorted(ids):
        jobs.enqueue(job_id, INTERACTIVE)
    return ids


def _consumer(client: redis.Redis, keys: Keys, hand: str, room: int = 100) -> BlockingConsumer:
    broker = BlockingRedisBroker(client, keys, broker_id=hand)
    return broker.consume(INTERACTIVE.value, prefetch=room, timeout=50)


def test_each_job_runs_once_and_both_workers_have_their_share(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    ran: queue.Queue[tuple[str, JobId]] = queue.Queue()
    let_go = threading.Event()

    def run(hand: str, job_id: JobId) -> None:
        ran.put((hand, job_id))
        let_go.wait(scaled(WITHIN_S))

    with (
        running_worker(client, keys, lambda job: run("a", job), hand=HANDS[0], threads=12),
        running_worker(client, keys, lambda job: run("b", job), hand=HANDS[1], threads=12),
    ):
        # Both have been heard of before there is anything to share.
        wait_until(lambda: client.zcard(keys.consumers(INTERACTIVE)) == 2)
        ids = _fill(jobs, 20)
        got = [ran.get(timeout=scaled(WITHIN_S)) for _ in range(20)]
        let_go.set()
        wait_until(lambda: client.hlen(keys.messages(INTERACTIVE)) == 0)
    assert {job_id for _, job_id in got} == ids
    assert ran.empty()
    assert set(Counter(hand for hand, _ in got)) == {"a", "b"}


def test_a_worker_that_starts_leaves_alone_what_a_live_one_has_in_hand(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    _fill(jobs, 3)
    first = _consumer(client, keys, HANDS[0], room=3)
    assert next(first) is not None
    second = BlockingRedisBroker(client, keys, broker_id=HANDS[1])
    assert second.requeue_all_unacked() == 0
    assert next(second.consume(INTERACTIVE.value, prefetch=3, timeout=50)) is None
    assert client.scard(keys.unacked(INTERACTIVE, HANDS[0])) == 3


def test_what_a_worker_had_that_is_never_heard_of_again_goes_to_another_one(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    (job_id,) = _fill(jobs, 1)
    gone = _consumer(client, keys, HANDS[0])
    assert next(gone) is not None
    seconds, _ = client.time()
    # As if it had been silent for a minute.
    client.zadd(keys.heartbeats, {HANDS[0]: (seconds - 60) * 1000})
    other = _consumer(client, keys, HANDS[1])
    assert not jobs.enqueue(job_id, INTERACTIVE)
    assert wait_until(lambda: next(other)).args[0] == job_id


def test_a_worker_restores_in_an_emptied_broker_what_it_has(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    ids = sorted(_fill(jobs, 3))
    first = BlockingRedisBroker(client, keys, broker_id=HANDS[0])
    consumer = first.consume(INTERACTIVE.value, prefetch=1, timeout=50)
    message = wait_until(lambda: next(consumer))
    assert message.args[0] == ids[0]
    _empty(client, keys)
    # Another worker was faster.
    assert [jobs.enqueue(job_id, INTERACTIVE) for job_id in ids] == [True] * 3
    first.restore_fetched()
    assert not jobs.enqueue(ids[0], INTERACTIVE)
    assert client.smembers(keys.unacked(INTERACTIVE, HANDS[0])) == {ids[0].encode()}
    other = _consumer(client, keys, HANDS[1])
    assert {wait_until(lambda: next(other)).args[0] for _ in range(2)} == set(ids[1:])
    consumer.ack(message)
    assert set(client.hkeys(keys.messages(INTERACTIVE))) == {one.encode() for one in ids[1:]}


def test_a_worker_restores_nothing_that_another_one_has_taken_since(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    (job_id,) = _fill(jobs, 1)
    first = BlockingRedisBroker(client, keys, broker_id=HANDS[0])
    assert next(first.consume(INTERACTIVE.value, prefetch=1, timeout=50)) is not None
    _empty(client, keys)
    jobs.enqueue(job_id, INTERACTIVE)
    assert next(_consumer(client, keys, HANDS[1])) is not None
    first.restore_fetched()
    assert client.scard(keys.unacked(INTERACTIVE, HANDS[0])) == 0
    assert client.scard(keys.unacked(INTERACTIVE, HANDS[1])) == 1


def _empty(client: redis.Redis, keys: Keys) -> None:
    client.delete(*client.scan_iter(match=f"{keys.prefix}:*"))


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
def test_a_machine_whose_clock_is_wrong_takes_nothing_and_loses_nothing(
    client: redis.Redis,
    keys: Keys,
    jobs: DramatiqJobQueue,
    monkeypatch: pytest.MonkeyPatch,
    ahead_ms: int,
) -> None:
    _fill(jobs, 1)
    right = _consumer(client, keys, HANDS[0])
    assert next(right) is not None
    seconds, _ = client.time()
    wrong_ms = seconds * 1000 + ahead_ms
    monkeypatch.setattr(dramatiq.brokers.redis, "current_millis", lambda: wrong_ms)
    wrong = _consumer(client, keys, HANDS[1])
    assert next(wrong) is None
    monkeypatch.undo()
    assert next(right) is None
    assert client.scard(keys.unacked(INTERACTIVE, HANDS[0])) == 1
    assert client.zcard(keys.heartbeats) == 2


def test_a_worker_with_more_in_hand_lets_the_other_one_go_first(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    brokers = [BlockingRedisBroker(client, keys, broker_id=hand) for hand in HANDS]
    for broker in brokers:
        assert broker.fair_share(INTERACTIVE.value) in {None, 1}
    _fill(jobs, 5)
    client.delete(keys.wakeup(INTERACTIVE))
    assert [broker.fair_share(INTERACTIVE.value) for broker in brokers] == [1, 1]
    brokers[0].make_ready(INTERACTIVE.value, 2)
    brokers[0].do_fetch(INTERACTIVE.value, 2)
    assert client.llen(keys.wakeup(INTERACTIVE)) == 0
    assert [broker.fair_share(INTERACTIVE.value) for broker in brokers] == [0, 3]
    # Who has enough has called the other one.
    assert client.llen(keys.wakeup(INTERACTIVE)) == 1


def test_a_worker_takes_what_the_other_one_does_not(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    idle = BlockingRedisBroker(client, keys, broker_id=HANDS[0])
    idle.fair_share(INTERACTIVE.value)  # alive, and takes nothing
    ids = _fill(jobs, 5)
    consumer = _consumer(client, keys, HANDS[1])
    found: set[JobId] = set()

    def all_taken() -> bool:
        message = next(consumer)
        if message is not None:
            found.add(JobId(message.args[0]))
        return found == ids

    wait_until(all_taken)


def test_a_worker_leaves_in_the_queue_what_it_has_no_place_for_while_others_live(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    other = BlockingRedisBroker(client, keys, broker_id=HANDS[0])
    other.fair_share(INTERACTIVE.value)
    _fill(jobs, 5)
    broker = BlockingRedisBroker(client, keys, broker_id=HANDS[1], shared_unacked_max=2)
    consumer = broker.consume(INTERACTIVE.value, prefetch=100, timeout=50)
    held = [next(consumer), next(consumer)]
    assert None not in held
    assert next(consumer) is None
    assert client.scard(keys.unacked(INTERACTIVE, HANDS[1])) == 2
    # The other one is gone, and so is the reason.
    client.zrem(keys.consumers(INTERACTIVE), HANDS[0])
    assert next(consumer) is not None
    assert client.scard(keys.unacked(INTERACTIVE, HANDS[1])) == 5


def test_slow_worker_holds_no_more_than_its_places_and_the_fast_one_does_the_rest(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that found itself alone would look again only after that time.
    monkeypatch.setattr(dramatiq_queue, "ALONE_S", 0.0)
    slow: queue.Queue[JobId] = queue.Queue()
    fast: queue.Queue[JobId] = queue.Queue()
    let_go = threading.Event()

    def crawl(job_id: JobId) -> None:
        slow.put(job_id)
        let_go.wait(scaled(WITHIN_S))

    with (
        running_worker(client, keys, crawl, hand=HANDS[0], threads=12) as crawling,
        running_worker(client, keys, fast.put, hand=HANDS[1], threads=12) as running,
    ):
        crawling.shared_unacked_max, running.shared_unacked_max = 2, 6
        wait_until(lambda: client.zcard(keys.consumers(INTERACTIVE)) == 2)
        ids = _fill(jobs, 40)
        # As if for ever: the slow one ends nothing until the other one has ended all the rest.
        wait_until(lambda: client.hlen(keys.messages(INTERACTIVE)) == slow.qsize() <= 2)
        let_go.set()
        wait_until(lambda: client.hlen(keys.messages(INTERACTIVE)) == 0)
    assert slow.qsize() + fast.qsize() == len(ids)


def test_worker_shares_the_line_of_its_model_with_workers_of_that_model_only(
    client: redis.Redis, keys: Keys
) -> None:
    line = queue_name(INTERACTIVE, "a")
    first, second = (BlockingRedisBroker(client, keys, broker_id=hand) for hand in HANDS)
    for name in (INTERACTIVE.value, line):
        first.fair_share(name)
    second.fair_share(INTERACTIVE.value)
    assert first.fair_share(INTERACTIVE.value) == 1
    assert first.fair_share(line) is None


def test_job_in_the_hands_of_a_worker_that_is_gone_can_be_removed(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    job_id = JobId("job-1")
    jobs.enqueue(job_id, INTERACTIVE, model="a")
    broker = BlockingRedisBroker(client, keys, broker_id=HANDS[0])
    consumer = broker.consume(queue_name(INTERACTIVE, "a"), prefetch=1, timeout=50)
    assert next(consumer) is not None
    assert not jobs.remove(job_id, INTERACTIVE, model="a")
    seconds, _ = client.time()
    client.zadd(keys.heartbeats, {HANDS[0]: (seconds - 60) * 1000})
    assert jobs.remove(job_id, INTERACTIVE, model="a")
    assert jobs.enqueue(job_id, INTERACTIVE, model="a")
