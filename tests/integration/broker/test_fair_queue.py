"""Many jobs of one agent do not hold up another, through the queue, the threads and the turns."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from domain.job.fair_scheduler import TurnOrder, TurnRequest
from domain.values import JobId, Priority
from ops.broker.client import Keys
from ops.broker.dramatiq_queue import DramatiqJobQueue
from tests.support.polling import scaled
from tests.support.processes.job_worker import running_worker
from worker.turn_scheduler import TurnScheduler

WITHIN_S = 60.0
JOBS = 200
THREADS = 16
BUSY, LATE = "busy", "late"


def agent_of(job_id: JobId) -> str:
    return job_id.split("-")[1]


class Worker:
    """Takes jobs as the real one does; each runs until it is told to end."""

    def __init__(self) -> None:
        self.gate = TurnScheduler(TurnOrder(slots=2, interactive_reserved=0))
        self.started: queue.Queue[JobId] = queue.Queue()
        self.late_in_hand = threading.Event()
        self.ends = threading.Semaphore(0)

    def run(self, job_id: JobId) -> None:
        turn = self.gate.request_turn(
            TurnRequest(id=job_id, line=agent_of(job_id), priority=Priority.INTERACTIVE)
        )
        if agent_of(job_id) == LATE:
            self.late_in_hand.set()
        try:
            if turn.wait():
                self.started.put(job_id)
                assert self.ends.acquire(timeout=scaled(WITHIN_S))
        finally:
            turn.release()

    def next_start(self) -> JobId:
        """Let a job end, and return the one that begins in its place."""
        self.ends.release()
        return self.started.get(timeout=scaled(WITHIN_S))


@contextmanager
def busy_worker(client: redis.Redis, keys: Keys, jobs: DramatiqJobQueue) -> Iterator[Worker]:
    for number in range(JOBS):
        jobs.enqueue(JobId(f"job-{BUSY}-{number:03d}"), Priority.INTERACTIVE, line=BUSY)
    worker = Worker()
    with running_worker(client, keys, worker.run, threads=THREADS):
        try:
            yield worker
        finally:
            worker.gate.close()
            worker.ends.release(THREADS)


def test_job_of_another_agent_starts_after_a_few_of_two_hundred(
    client: redis.Redis, keys: Keys
) -> None:
    jobs = DramatiqJobQueue(client, keys)
    with busy_worker(client, keys, jobs) as worker:
        begun = [worker.started.get(timeout=scaled(WITHIN_S)) for _ in range(2)]
        late = JobId(f"job-{LATE}-999")
        jobs.enqueue(late, Priority.INTERACTIVE, line=LATE)
        # A thread falls free with each end; the late job gets the first of them.
        begun += [worker.next_start() for _ in range(2)]
        assert worker.late_in_hand.wait(scaled(WITHIN_S))
        for _ in range(3):
            begun.append(worker.next_start())
            if begun[-1] == late:
                break
        assert begun[-1] == late
