"""A Dramatiq worker built like the real one, with an actor that only records its arguments.

As a program (``python -m tests.support.processes.job_worker URL PREFIX``) it requeues the jobs it
held before, writes one line to stdout per started job, and never finishes a job named
``job-stuck…``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dramatiq
import redis

from domain.values import JobId, Priority
from ops.broker.client import Keys, connect
from ops.broker.dramatiq_queue import ACTOR_NAME, BlockingRedisBroker

BROKER_ID = "engine-0"
STOP_MS = 5000


@contextmanager
def running_worker(
    client: redis.Redis,
    keys: Keys,
    run: Callable[[JobId], None],
    *,
    threads: int = 4,
    hand: str = BROKER_ID,
) -> Iterator[BlockingRedisBroker]:
    """Run every job that comes through ``run``."""
    broker = BlockingRedisBroker(client, keys, broker_id=hand)
    dramatiq.actor(actor_name=ACTOR_NAME, queue_name=Priority.INTERACTIVE.value, broker=broker)(
        lambda job_id: run(JobId(job_id))
    )
    # A message names its queue and its actor, so the one actor serves every queue.
    broker.declare_queue(Priority.BATCH.value)
    broker.requeue_all_unacked()
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=200)
    worker.queue_prefetch = threads
    worker.start()
    try:
        yield broker
    finally:
        worker.stop(STOP_MS)


def main() -> None:
    """Run until killed."""
    url, prefix = sys.argv[1:]

    def run(job_id: JobId) -> None:
        print(job_id, flush=True)  # noqa: T201 - the test reads it
        if job_id.startswith("job-stuck"):
            threading.Event().wait()

    with running_worker(connect(url), Keys(prefix), run):
        threading.Event().wait()


if __name__ == "__main__":
    main()
