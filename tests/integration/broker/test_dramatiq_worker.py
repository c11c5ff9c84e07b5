"""Jobs reach an actor through a real Dramatiq worker, on both brokers."""

from __future__ import annotations

import logging
import queue
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from domain.values import JobId, Priority
from ops.broker.client import BLOCK_MAX_S, Keys, release_blocked
from ops.broker.dramatiq_queue import (
    WAKE_ACTOR_NAME,
    BlockingRedisBroker,
    DramatiqJobQueue,
    message_of,
)
from tests.support.polling import WITHIN_S, now_s, scaled, wait_until
from tests.support.processes.job_worker import BROKER_ID, running_worker

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


def job(n: int | str) -> JobId:
    return JobId(f"job-{n}")


def waiting(client: redis.Redis, keys: Keys, line: Priority = INTERACTIVE) -> list[str]:
    """Return what no worker has: what came back or was called, then the line of no agent."""
    called: list[Any] = client.lrange(keys.ready(line), 0, -1)
    in_line: list[Any] = client.zrange(keys.agent_queue(line, None), 0, -1)
    return [one.decode() for one in (*called, *in_line)]


@pytest.fixture
def jobs(client: redis.Redis, keys: Keys) -> DramatiqJobQueue:
    return DramatiqJobQueue(client, keys)


def test_jobs_of_both_queues_reach_the_actor_and_leave_nothing(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    ran: queue.Queue[JobId] = queue.Queue()
    with running_worker(client, keys, ran.put):
        for n in range(20):
            jobs.enqueue(job(n), BATCH if n % 2 else INTERACTIVE)
        got = {ran.get(timeout=scaled(WITHIN_S)) for _ in range(20)}
        assert got == {job(n) for n in range(20)}
        wait_until(lambda: not any(client.hlen(keys.messages(line)) for line in Priority))
    assert ran.empty()
    for line in Priority:
        assert not waiting(client, keys, line)
        assert client.scard(keys.unacked(line, BROKER_ID)) == 0


def test_idle_worker_takes_a_job_without_polling(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    started: queue.Queue[float] = queue.Queue()
    waits_ms = []
    with running_worker(client, keys, lambda _: started.put(now_s())):
        jobs.enqueue(job("warm-up"), INTERACTIVE)
        started.get(timeout=scaled(WITHIN_S))
        for n in range(30):
            # Idle is a worker that has let go of the job before.
            wait_until(lambda: client.hlen(keys.messages(INTERACTIVE)) == 0)
            begun = now_s()
            jobs.enqueue(job(n), INTERACTIVE)
            waits_ms.append((started.get(timeout=scaled(WITHIN_S)) - begun) * 1000)
    # Told, not judged: pytest -o log_cli=true --log-cli-level=INFO.
    logging.getLogger(__name__).info("dispatch p50 %.2f ms", statistics.median(waits_ms))
    assert len(waits_ms) == 30


def test_removed_job_never_starts(client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue) -> None:
    ran: queue.Queue[JobId] = queue.Queue()
    for n in range(10):
        jobs.enqueue(job(n), INTERACTIVE)
    removed = {job(n) for n in range(10) if n % 3 == 0}
    assert all(jobs.remove(one, INTERACTIVE) for one in removed)
    with running_worker(client, keys, ran.put):
        got = {ran.get(timeout=scaled(WITHIN_S)) for _ in range(6)}
        wait_until(lambda: client.hlen(keys.messages(INTERACTIVE)) == 0)
    assert ran.empty()
    assert got.isdisjoint(removed)


def test_full_worker_takes_the_next_job_as_soon_as_one_ends(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    ran: queue.Queue[JobId] = queue.Queue()
    let_go = threading.Semaphore(0)

    def run(job_id: JobId) -> None:
        ran.put(job_id)
        let_go.acquire(timeout=scaled(WITHIN_S))

    with running_worker(client, keys, run, threads=1):
        for n in range(3):
            jobs.enqueue(job(n), INTERACTIVE)
        for n in range(3):
            assert ran.get(timeout=scaled(WITHIN_S)) == job(n)
            assert waiting(client, keys) == [job(later) for later in range(n + 1, 3)]
            let_go.release()


def test_job_whose_actor_fails_is_let_go_and_can_be_queued_again(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    ran: queue.Queue[JobId] = queue.Queue()

    def fail(job_id: JobId) -> None:
        ran.put(job_id)
        raise ValueError

    with running_worker(client, keys, fail):
        for _ in range(2):
            wait_until(lambda: jobs.enqueue(job(1), INTERACTIVE))
            assert ran.get(timeout=scaled(WITHIN_S)) == job(1)


def test_queue_that_lost_everything_is_filled_again(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    ran: queue.Queue[JobId] = queue.Queue()
    jobs.enqueue(job(1), INTERACTIVE)
    client.flushall()
    client.script_flush()
    assert jobs.enqueue(job(1), INTERACTIVE)
    with running_worker(client, keys, ran.put):
        assert ran.get(timeout=scaled(WITHIN_S)) == job(1)
        # The worker lets go of the job once its actor has returned, which is after it ran.
        wait_until(lambda: client.hlen(keys.messages(INTERACTIVE)) == 0)
        client.flushall()
        client.script_flush()
        wait_until(lambda: jobs.enqueue(job(1), INTERACTIVE))
        assert ran.get(timeout=scaled(WITHIN_S)) == job(1)


def test_message_without_a_place_in_line_is_queued_again(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    client.hset(keys.messages(INTERACTIVE), job(1), message_of(job(1), INTERACTIVE).encode())
    assert jobs.enqueue(job(1), INTERACTIVE)
    assert waiting(client, keys) == [job(1)]
    assert not jobs.enqueue(job(1), INTERACTIVE)


def test_jobs_left_in_hand_go_back_to_the_front_oldest_first(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    broker = BlockingRedisBroker(client, keys, broker_id=BROKER_ID)
    for n in range(5):
        jobs.enqueue(job(n), INTERACTIVE)
    consumer = broker.consume(INTERACTIVE.value, prefetch=3, timeout=50)
    assert next(consumer) is not None
    assert waiting(client, keys) == [job(3), job(4)]
    assert broker.requeue_all_unacked() == 3
    assert waiting(client, keys) == [job(n) for n in range(5)]
    assert broker.requeue_all_unacked() == 0


def test_consumer_that_stops_is_released_from_its_wait_and_takes_no_job(
    client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    broker = BlockingRedisBroker(client, keys, broker_id=BROKER_ID)
    broker.declare_queue(INTERACTIVE.value)
    consumer = broker.consume(INTERACTIVE.value, prefetch=1, timeout=60_000)
    broker.stop_fetching()
    broker.release_consumers()
    jobs.enqueue(job(1), INTERACTIVE)
    for_a_thread = next(consumer)
    assert for_a_thread is not None
    assert for_a_thread.actor_name == WAKE_ACTOR_NAME
    consumer.ack(for_a_thread)
    assert next(consumer) is None
    assert waiting(client, keys) == [job(1)]


def test_release_ends_a_blocking_command(client: redis.Redis, keys: Keys) -> None:
    taken: queue.Queue[Any] = queue.Queue()
    names = [keys.release("mine"), keys.wakeup(INTERACTIVE)]
    thread = threading.Thread(target=lambda: taken.put(client.blpop(names, timeout=BLOCK_MAX_S)))
    thread.start()
    release_blocked(client, names[0])
    assert taken.get(timeout=scaled(WITHIN_S)) == (names[0].encode(), b"")
    thread.join()
    assert not client.exists(*names)


def test_worker_killed_in_mid_job_gets_the_job_again_when_it_comes_back(
    broker_url: str, client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue
) -> None:
    stuck = job("stuck")
    with worker_process(broker_url, keys) as first:
        jobs.enqueue(stuck, INTERACTIVE)
        assert next_line(first) == stuck
        first.kill()
        first.wait(scaled(WITHIN_S))
    assert not waiting(client, keys)
    assert not jobs.enqueue(stuck, INTERACTIVE)
    with worker_process(broker_url, keys) as second:
        # Nobody but the worker itself, at its start, puts it back: no timeout is involved.
        assert next_line(second) == stuck


@contextmanager
def worker_process(url: str, keys: Keys) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.job_worker", url, keys.prefix],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(scaled(WITHIN_S))
        assert process.stdout is not None
        process.stdout.close()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
