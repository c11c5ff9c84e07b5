"""Dramatiq's consumer threads. Each queue has its own, so a full queue never blocks the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import dramatiq

from domain.values import Priority


class Consumers:
    """Takes messages of every queue and runs the actor on them.

    A thread is not an engine slot: most threads hold a job that waits for its turn.

    Args:
        broker: Delivers the messages; its actors are declared.
        threads: Most jobs of each queue in hand at once.
    """

    def __init__(self, broker: dramatiq.Broker, threads: Mapping[Priority, int]) -> None:
        self._broker = broker
        self._workers: list[dramatiq.Worker] = []
        for priority, count in threads.items():
            worker = dramatiq.Worker(broker, queues={priority.value}, worker_threads=count)
            # As many messages as threads, so that no message in hand waits for a thread.
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
