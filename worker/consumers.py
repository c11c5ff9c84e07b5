"""Dramatiq's consumer threads. Each priority has its own, so a full one never blocks the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import dramatiq

from domain.values import Priority
from ops.adapters.redis.client import queue_name


def queues_of(priority: Priority, model: str | None) -> tuple[str, ...]:
    """Return the queues of a worker: the shared one, and the line of its model if it has one."""
    shared = queue_name(priority)
    return (shared,) if model is None else (shared, queue_name(priority, model))


class Consumers:
    """Takes messages of every queue and runs the actor on them.

    A thread is not an engine slot: most threads hold a job that waits for its turn.

    Args:
        broker: Delivers the messages; its actors are declared.
        threads: Most jobs of each queue in hand at once.
        model: The model of this worker.
    """

    def __init__(
        self, broker: dramatiq.Broker, threads: Mapping[Priority, int], *, model: str | None = None
    ) -> None:
        self._broker = broker
        self._workers: list[dramatiq.Worker] = []
        for priority, count in threads.items():
            queues = set(queues_of(priority, model))
            # As many messages as threads, so that no message in hand waits for a thread.
            worker = dramatiq.Worker(broker, queues=queues, worker_threads=count * len(queues))
            worker.queue_prefetch = count
            self._workers.append(worker)

    def start(self) -> None:
        """Start to take messages."""
        # Dramatiq's command line emits this signal; middleware waits for it.
        self._broker.emit_after("process_boot")
        self._broker.logger.addFilter(_is_news)
        try:
            for worker in self._workers:
                worker.start()
        finally:
            self._broker.logger.removeFilter(_is_news)

    def stop(self, timeout_s: float) -> None:
        """Take no more messages, and wait for running actors.

        Args:
            timeout_s: Longest wait for all queues together.
        """
        give_up_at = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.stop(timeout=max(0, int((give_up_at - time.monotonic()) * 1000)))


def _is_news(record: logging.LogRecord) -> bool:
    """Drop Dramatiq's warning about the second worker's middleware: both workers are intended."""
    return "middleware of the same type twice" not in record.getMessage()
