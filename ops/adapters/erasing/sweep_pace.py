"""Decides when the service sweeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from domain.ports import Clock
from ops.adapters.erasing.deletions import last_deletion, last_sweep
from ops.adapters.erasing.erase import remove_traces
from ops.adapters.erasing.sweep import BlocksEraser, ItemsEraser, RetentionRules
from ops.adapters.erasing.text_map import last_erasure
from ops.adapters.event_log.database import reader_engine

#: A sweep reads the whole log: the next one comes after this many times what that took.
PACE: Final = 10
#: Time between two looks for deleted jobs that were still open, in seconds.
WAITING_S: Final = 30.0
#: Sweeps once; returns whether rows of the database were deleted.
Sweep = Callable[[ItemsEraser, BlocksEraser], bool]
_Given = TypeVar("_Given")


class PacedSweeps:
    """Sweeps when something was deleted, or when a rule is due.

    Args:
        clock: The present.
        sweep: Sweeps once.
        erase_items: Erases the items of jobs.
        erase_blocks: Deletes blocks in memory and on disk.
    """

    def __init__(
        self,
        url: str,
        rules: RetentionRules,
        *,
        clock: Clock,
        sweep: Sweep,
        erase_items: ItemsEraser,
        erase_blocks: BlocksEraser,
    ) -> None:
        self._url = url
        self._rules = rules
        self._clock = clock
        self._sweep = sweep
        self._erase_items = erase_items
        self._erase_blocks = erase_blocks
        self._reader = reader_engine(url)
        self._swept_at: float | None = None
        self._took_s = 0.0
        self._waited_s = 0.0
        #: Whether files of the database may have what was deleted; a process before may have died.
        self._has_traces = last_erasure(self._reader)[1] > 0

    def close(self) -> None:
        """Close the connections."""
        self._reader.dispose()

    def run(self) -> None:
        """Sweep if something was deleted or a rule is due; call it every few seconds.

        Raises:
            LogUnavailable: The log cannot be read or written, or a reader needs old pages.
            QueueUnavailable: The broker cannot be reached; nothing was erased from the log.
        """
        if self._is_due():
            self._run_sweep()
        if self._has_traces:
            self._remove_traces()

    def _run_sweep(self) -> None:
        started_s, self._waited_s = self._clock.monotonic(), 0.0
        try:
            is_erased = self._sweep(self._timed(self._erase_items), self._timed(self._erase_blocks))
            self._has_traces = self._has_traces or is_erased
        finally:
            self._swept_at = self._clock.monotonic()
            # Waits for the broker do not count: they cost the log nothing.
            self._took_s = self._swept_at - started_s - self._waited_s

    def _timed(self, erase: Callable[[_Given], object]) -> Callable[[_Given], object]:
        """Return an eraser whose time is not counted as that of the sweep."""

        def erase_timed(given: _Given) -> None:
            started_s = self._clock.monotonic()
            erase(given)
            self._waited_s += self._clock.monotonic() - started_s

        return erase_timed

    def _is_due(self) -> bool:
        position, waiting = last_sweep(self._reader)
        is_deleted = last_deletion(self._reader) > position
        if self._swept_at is None:
            return is_deleted or self._rules.is_on or waiting > 0
        passed_s = self._clock.monotonic() - self._swept_at
        if passed_s < PACE * self._took_s:
            return False
        if is_deleted:
            return True
        return (waiting > 0 and passed_s >= WAITING_S) or (
            self._rules.is_on and passed_s >= self._rules.interval_s
        )

    def _remove_traces(self) -> None:
        started_s = self._clock.monotonic()
        remove_traces(self._url, is_served=True)
        self._took_s += self._clock.monotonic() - started_s
        self._has_traces = False
