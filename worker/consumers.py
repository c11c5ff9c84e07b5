"""Dramatiq's threads: each queue has its own, so that a full one never shuts out the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import dramatiq

from domain.values import Priority


class Consumers:
    """Takes messages of every queue and runs the actor on them.

    A thread is no slot of the engine: most of them hold a job that waits for its turn.

    Args:
        broker: Where messages come from; its actors are declared.
        threads: Jobs of each queue that may be in hand at once.
    """

    def __init__(self, broker: dramatiq.Broker, threads: Mapping[Priority, int]) -> None:
        self._broker = broker
        self._workers: list[dramatiq.Worker] = []
        for priority, count in threads.items():
            worker = dramatiq.Worker(broker, queues={priority.value}, worker_threads=count)
            # What is in hand has a thread, so nothing waits behind the turns of others.
            worker.queue_prefetch = count
            self._workers.append(worker)

    def start(self) -> None:
        """Begin to take messages."""
        # What Dramatiq's own command line would say; middleware waits for it.
        self._broker.emit_after("process_boot")
        self._broker.logger.addFilter(_is_news)
        try:
            for worker in self._workers:
                worker.start()
        finally:
            self._broker.logger.removeFilter(_is_news)

    def stop(self, timeout_s: float) -> None:
        """Take no more messages and wait for running actors, all queues together so long."""
        give_up_at = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.stop(timeout=max(0, int((give_up_at - time.monotonic()) * 1000)))


def _is_news(record: logging.LogRecord) -> bool:
    """Drop Dramatiq's warning of a second worker's middleware: both are wanted here."""
    return "middleware of the same type twice" not in record.getMessage()
