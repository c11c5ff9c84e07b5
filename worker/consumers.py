"""Dramatiq's threads: a consumer for each queue, and a thread for each message in hand.

So a full queue never keeps another one waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import dramatiq

from domain.values import Priority
from ops.adapters.redis.client import queue_name
from ops.adapters.redis.dramatiq_queue import BlockingRedisBroker

#: Interactive jobs in a worker's hands at once.
INTERACTIVE_THREADS: Final = 128
#: Batch jobs in a worker's hands at once.
BATCH_THREADS: Final = 64
#: Seconds after which an idle thread looks for messages without being woken; hundreds of threads
#: that look every second would cost an idle service some percent of a core.
IDLE_S: Final = 600.0
#: Seconds between two looks at how long a stop may still wait.
LOOK_S: Final = 0.2


def queues_of(priority: Priority, models: Iterable[str]) -> tuple[str, ...]:
    """Return the queues of a worker: the shared one, and the line of each of its models."""
    return (queue_name(priority), *(queue_name(priority, model) for model in models))


class Consumers:
    """Takes messages of every queue and runs the actor on them.

    A thread is not an engine slot: most threads hold a job that waits for its turn.

    Args:
        broker: Delivers the messages; its actors are declared.
        threads: Most jobs of each queue in hand at once; default: the constants.
        models: The models of this worker.
    """

    def __init__(
        self,
        broker: BlockingRedisBroker,
        threads: Mapping[Priority, int] | None = None,
        *,
        models: Collection[str] = (),
    ) -> None:
        self._broker = broker
        wanted = {Priority.INTERACTIVE: INTERACTIVE_THREADS, Priority.BATCH: BATCH_THREADS}
        broker.unacked_max = {
            queue: count
            for priority, count in (threads or wanted).items()
            for queue in queues_of(priority, models)
        }
        # As many threads as messages, so that no message in hand waits for a thread.
        self._worker = dramatiq.Worker(
            broker,
            queues=set(broker.unacked_max),
            worker_threads=sum(broker.unacked_max.values()),
            worker_timeout=int(IDLE_S * 1000),
        )

    def start(self) -> None:
        """Start to take messages."""
        # Dramatiq's command line emits this signal; middleware waits for it.
        self._broker.emit_after("process_boot")
        self._worker.start()

    def stop(self, left_s: Callable[[], float]) -> None:
        """Take no more messages, and wait for running actors.

        Args:
            left_s: Returns how long to wait from now on for all queues together, in seconds.
        """
        for thread in self._worker.workers:
            thread.stop()
        self._broker.stop_fetching()
        # Consumers send heartbeats until the actors have ended.
        for thread in self._worker.workers:
            _join(thread, left_s)
        for consumer in self._worker.consumers.values():
            consumer.stop()
        self._broker.release_consumers()
        self._worker.stop(timeout=int(left_s() * 1000))


def _join(thread: threading.Thread, left_s: Callable[[], float]) -> None:
    while thread.is_alive() and (wait_s := left_s()) > 0:
        thread.join(min(LOOK_S, wait_s))
