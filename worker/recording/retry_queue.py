"""A thread that handles items one after the other and retries those that failed."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

import structlog

from domain.errors import SemanticError

_Item = TypeVar("_Item")
_log = structlog.get_logger(__name__)

#: Items that may wait; more are dropped, which is logged once.
ITEMS_MAX = 4096
#: Seconds before the first retry of an item; the pause doubles each time.
RETRY_S = 0.05
RETRY_S_MAX = 5.0
#: Tries of one item; with the pauses between them, about half a minute.
TRIES_MAX = 12


class RetryLater(Exception):
    """An item cannot be handled before another event has happened."""


class RetryQueue(Generic[_Item]):
    """A bounded queue and one thread. ``put`` may be called from any thread and never blocks.

    An item is retried after ``RetryLater`` and after a ``SemanticError``, up to ``TRIES_MAX``
    times. Any other exception is a defect: it is logged, and the item is dropped.

    Args:
        handle: Handles one item.
        monotonic_s: The clock.
    """

    def __init__(
        self, name: str, handle: Callable[[_Item], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._handle = handle
        self._now_s = monotonic_s
        self._changed = threading.Condition()
        #: A heap of (due time, insertion order, earlier tries, item).
        self._waiting: list[tuple[float, int, int, _Item]] = []
        self._order = count()
        self._busy = False
        self._closing = False
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: _Item, *, after_s: float = 0.0) -> None:
        """Enqueue an item, to be handled after ``after_s`` seconds."""
        self._put(item, after_s, 0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every item is handled or dropped; return whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Handle the remaining items once more and end the thread; return whether in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put(self, item: _Item, after_s: float, tries: int) -> None:
        with self._changed:
            if len(self._waiting) >= ITEMS_MAX:
                self._lost += 1
                if self._lost == 1:
                    _log.warning("items_dropped", thread=self._thread.name)
                return
            due_s = self._now_s() + after_s
            heapq.heappush(self._waiting, (due_s, next(self._order), tries, item))
            self._changed.notify_all()

    def _run(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """Handle the next item that is due; return ``False`` at the end."""
        with self._changed:
            if not self._is_due():
                if self._closing:
                    return False
                self._changed.wait(self._wait_s())
                return True
            _, _, tries, item = heapq.heappop(self._waiting)
            self._busy = True
        again = not self._handled(item)
        if again and tries + 1 < TRIES_MAX and not self._closing:
            self._put(item, min(RETRY_S_MAX, RETRY_S * 2**tries), tries + 1)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        return self._closing or self._waiting[0][0] <= self._now_s()

    def _wait_s(self) -> float | None:
        return max(0.0, self._waiting[0][0] - self._now_s()) if self._waiting else None

    def _handled(self, item: _Item) -> bool:
        try:
            self._handle(item)
        except RetryLater:
            return False
        except SemanticError as error:
            _log.warning("item_failed", error=error.code, why=error.message)
            return False
        except Exception:  # noqa: BLE001 - a defect in one item must not lose the others
            _log.exception("item_crashed", item=type(item).__name__)
        return True
