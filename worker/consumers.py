"""Dramatiq's consumer threads. Each priority has its own, so a full one never blocks the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from queue import Empty, PriorityQueue
from typing import Any, Final

import dramatiq

from domain.values import Priority
from ops.adapters.redis.client import BLOCK_MAX_S, queue_name
from ops.adapters.redis.dramatiq_queue import BlockingRedisBroker

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
        threads: Most jobs of each queue in hand at once.
        models: The models of this worker.
    """

    def __init__(
        self,
        broker: dramatiq.Broker,
        threads: Mapping[Priority, int],
        *,
        models: Collection[str] = (),
    ) -> None:
        self._broker = broker
        self._workers: list[dramatiq.Worker] = []
        self._hands: list[_HandedMessages] = []
        for priority, count in threads.items():
            queues = set(queues_of(priority, models))
            # As many messages as threads, so that no message in hand waits for a thread.
            worker = dramatiq.Worker(
                broker,
                queues=queues,
                worker_threads=count * len(queues),
                worker_timeout=int(BLOCK_MAX_S * 1000),
            )
            worker.queue_prefetch = count
            worker.work_queue = hand = _HandedMessages()
            self._hands.append(hand)
            self._workers.append(worker)

    def start(self) -> None:
        """Start to take messages."""
        # Dramatiq's command line emits this signal; middleware waits for it.
        self._broker.emit_after("process_boot")
        self._broker.logger.addFilter(_is_news)
        try:
            for worker in self._workers:
                worker.start()
                for thread in worker.workers:
                    thread.timeout = IDLE_S
        finally:
            self._broker.logger.removeFilter(_is_news)

    def stop(self, left_s: Callable[[], float]) -> None:
        """Take no more messages, and wait for running actors.

        Args:
            left_s: Returns how long to wait from now on for all queues together, in seconds.
        """
        for worker, hand in zip(self._workers, self._hands, strict=True):
            for thread in worker.workers:
                thread.stop()
            hand.close()
        if isinstance(self._broker, BlockingRedisBroker):
            self._broker.stop_fetching()
        for worker in self._workers:
            # Consumers send heartbeats until the actors have ended.
            for thread in worker.workers:
                _join(thread, left_s)
            for consumer in worker.consumers.values():
                consumer.stop()
        if isinstance(self._broker, BlockingRedisBroker):
            self._broker.release_consumers()
        for worker in self._workers:
            worker.stop(timeout=int(left_s() * 1000))


class _HandedMessages(PriorityQueue[Any]):
    """Messages between the consumers and the threads; once closed, no thread waits for more."""

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False

    def close(self) -> None:
        """End all waits; messages that are left can still be taken."""
        with self.mutex:
            self._is_closed = True
            self.not_empty.notify_all()

    def _qsize(self) -> int:
        return max(super()._qsize(), int(self._is_closed))

    def _get(self) -> Any:  # noqa: ANN401 - Dramatiq's own items
        if not super()._qsize():
            raise Empty
        return super()._get()


def _join(thread: threading.Thread, left_s: Callable[[], float]) -> None:
    while thread.is_alive() and (wait_s := left_s()) > 0:
        thread.join(min(LOOK_S, wait_s))


def _is_news(record: logging.LogRecord) -> bool:
    """Drop Dramatiq's warning about the second worker's middleware: both workers are intended."""
    return "middleware of the same type twice" not in record.getMessage()
