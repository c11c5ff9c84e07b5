"""Items on their way to the sink, kept while the sink cannot be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from domain.chat.generation import Outcome
from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable
from domain.job.ports import ItemSink
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)

#: Items kept while the sink is away; at 200 tokens a second that is over four minutes.
ITEMS_BUFFERED_MAX = 50_000
#: How long the sink may be away before the jobs that wait for it are given back.
OUTAGE_S_MAX = 30.0
#: Pause after the first failed publish; it doubles up to the limit below.
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """An outcome to tell once the items before it are out."""

    sequence: Sequence
    outcome: Outcome


class Outbox:
    """Collects items and endings and brings them out in order. Belongs to the emitter thread.

    What every publish costs (a script in Redis, a wake-up of the front, a write to each client) is
    shared by the items of ``interval_s``. The first item and the end of a generation never wait.

    Args:
        sink: Where items go.
        tell: Gives a generation its outcome.
        interval_s: Between two publishes; 0 is one for each engine step.
    """

    def __init__(
        self,
        sink: ItemSink,
        tell: Callable[[Sequence, Outcome], None],
        *,
        interval_s: float = 0.0,
    ) -> None:
        self._sink = sink
        self._tell = tell
        self._interval_s = interval_s
        self._next_at = 0.0
        self._items: list[tuple[Sequence, StreamItem]] = []
        self._endings: list[PendingOutcome] = []
        self._away_since: float | None = None
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_S_MIN

    def add(self, sequence: Sequence, item: StreamItem) -> None:
        """Take an item; one without a number is dropped while the sink is away."""
        if item.n is not None or self._away_since is None:
            self._items.append((sequence, item))
        if item.n == sequence.task.first_item:
            self._next_at = 0.0

    def end(self, sequence: Sequence, outcome: Outcome) -> None:
        """Take an outcome, to be told after the items that are held now."""
        self._endings.append(PendingOutcome(sequence, outcome))
        self._next_at = 0.0

    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._items and not self._endings

    def wait_s(self, now: float) -> float | None:
        """Return how long to wait for the next publish, ``None`` if nothing is held."""
        if self.is_empty():
            return None
        return max(0.0, self._retry_at - now, self._next_at - now)

    def flush(self, now: float) -> list[Sequence]:
        """Publish all that is held, in one call, if it is time to.

        Returns:
            The generations to give up, because the sink was away for too long; empty if all is
            well or the next try may still help.
        """
        if now < self._retry_at:
            return self._overdue(now)
        if now < self._next_at:
            return []
        try:
            if self._items:
                self._next_at = now + self._interval_s
                self._sink.publish([(seq.task.job_id, item) for seq, item in self._items])
        except QueueUnavailable as error:
            self._away(now, error)
            return self._overdue(now)
        except Exception:  # noqa: BLE001 - a foreign sink may raise anything
            # A sink that fails in another way would fail again; the jobs must not hang on it.
            _log.exception("items_not_published", items=len(self._items))
            return self._drop()
        self._back()
        return []

    def _away(self, now: float, error: QueueUnavailable) -> None:
        if self._away_since is None:
            self._away_since = now
            _log.warning("sink_away", error=error.message, items=len(self._items))
            self._items = [entry for entry in self._items if entry[1].n is not None]
        self._retry_at = now + self._backoff_s
        self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2)

    def _overdue(self, now: float) -> list[Sequence]:
        assert self._away_since is not None, "no retry is due unless the sink is away"
        if now - self._away_since < OUTAGE_S_MAX and len(self._items) < ITEMS_BUFFERED_MAX:
            return []
        self._away_since = now
        return self._drop()

    def _drop(self) -> list[Sequence]:
        held = dict.fromkeys(
            [seq for seq, _ in self._items] + [ending.sequence for ending in self._endings]
        )
        self._items, self._endings = [], []
        return list(held)

    def _back(self) -> None:
        if self._away_since is not None:
            _log.info("sink_back", items=len(self._items))
        self._items.clear()
        endings, self._endings = self._endings, []
        self._away_since, self._retry_at, self._backoff_s = None, 0.0, BACKOFF_S_MIN
        for ending in endings:
            self._tell(ending.sequence, ending.outcome)
