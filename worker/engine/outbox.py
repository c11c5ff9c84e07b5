"""Buffer stream items and outcomes, and publish them in order, also across outages of the sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from domain.chat.generation import Outcome
from domain.chat.items import Failed, StreamItem
from domain.errors import EngineFailure, QueueUnavailable
from domain.job.ports import ItemSink
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)

#: Most items buffered while the sink is unreachable: over four minutes at 200 tokens a second.
ITEMS_BUFFERED_MAX = 50_000
#: Seconds of an outage after which the waiting generations fail retryably.
OUTAGE_S_MAX = 30.0
#: Seconds until the first retry; they double with each failure up to the limit below.
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0

_UNREACHABLE = Failed(
    error=QueueUnavailable.code,
    message="the stream could not be written for too long",
    retryable=True,
)
#: Counted as a failure, unlike an outage: without a limit a job whose items cannot be stored would
#: never end.
_UNSTORED = Failed(
    error=EngineFailure.code, message="the items could not be stored", retryable=True
)


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """An outcome to deliver after the items before it are published."""

    sequence: Sequence
    outcome: Outcome


class Outbox:
    """Buffers items and outcomes and publishes them in order. Belongs to the emitter thread.

    Each publish costs a Redis script, a wake-up of the API and a write to each client, so the items
    of ``interval_s`` share one. The first item and the end of a generation are published at once.

    Args:
        sink: Publishes the items.
        deliver: Gives a generation its outcome.
        interval_s: Seconds between two publishes; 0 publishes after each engine step.
    """

    def __init__(
        self,
        sink: ItemSink,
        deliver: Callable[[Sequence, Outcome], None],
        *,
        interval_s: float = 0.0,
    ) -> None:
        self._sink = sink
        self._deliver = deliver
        self._interval_s = interval_s
        self._next_at = 0.0
        self._items: list[tuple[Sequence, StreamItem]] = []
        self._outcomes: list[PendingOutcome] = []
        self._unreachable_since: float | None = None
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_S_MIN

    def add(self, sequence: Sequence, item: StreamItem) -> None:
        """Append an item; one without a number is dropped while the sink is unreachable."""
        if item.n is not None or self._unreachable_since is None:
            self._items.append((sequence, item))
        if item.n == sequence.task.first_item:
            self._next_at = 0.0

    def end(self, sequence: Sequence, outcome: Outcome) -> None:
        """Append an outcome, to deliver after the items appended so far."""
        self._outcomes.append(PendingOutcome(sequence, outcome))
        self._next_at = 0.0

    def is_empty(self) -> bool:
        """Whether no item or outcome waits."""
        return not self._items and not self._outcomes

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next publish, ``None`` if the outbox is empty."""
        if self.is_empty():
            return None
        return max(0.0, self._retry_at - now, self._next_at - now)

    def flush(self, now: float) -> list[tuple[Sequence, Failed]]:
        """Publish all buffered items in one call, if a publish is due.

        Returns:
            The generations to fail, and how: the sink was unreachable for too long, or is broken.
            Their items are dropped.
        """
        if now < self._retry_at:
            return self._give_up_if_overdue(now)
        if now < self._next_at:
            return []
        try:
            if self._items:
                self._next_at = now + self._interval_s
                self._sink.publish([(seq.task.job_id, item) for seq, item in self._items])
        except QueueUnavailable as error:
            self._record_failure(now, error)
            return self._give_up_if_overdue(now)
        except Exception:  # noqa: BLE001 - a sink may raise anything
            # Another kind of failure would repeat; the jobs must not wait for it.
            _log.exception("items_not_published", items=len(self._items))
            return self._drop_all(_UNSTORED)
        self._record_success()
        return []

    def _record_failure(self, now: float, error: QueueUnavailable) -> None:
        if self._unreachable_since is None:
            self._unreachable_since = now
            _log.warning("sink_unreachable", error=error.message, items=len(self._items))
            self._items = [entry for entry in self._items if entry[1].n is not None]
        self._retry_at = now + self._backoff_s
        self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2)

    def _give_up_if_overdue(self, now: float) -> list[tuple[Sequence, Failed]]:
        assert self._unreachable_since is not None, "a retry implies an outage"
        if now - self._unreachable_since < OUTAGE_S_MAX and len(self._items) < ITEMS_BUFFERED_MAX:
            return []
        self._unreachable_since = now
        return self._drop_all(_UNREACHABLE)

    def _drop_all(self, failure: Failed) -> list[tuple[Sequence, Failed]]:
        dropped = dict.fromkeys(
            [seq for seq, _ in self._items] + [pending.sequence for pending in self._outcomes]
        )
        self._items, self._outcomes = [], []
        return [(sequence, failure) for sequence in dropped]

    def _record_success(self) -> None:
        if self._unreachable_since is not None:
            _log.info("sink_reachable", items=len(self._items))
        self._items.clear()
        outcomes, self._outcomes = self._outcomes, []
        self._unreachable_since, self._retry_at, self._backoff_s = None, 0.0, BACKOFF_S_MIN
        for pending in outcomes:
            self._deliver(pending.sequence, pending.outcome)
