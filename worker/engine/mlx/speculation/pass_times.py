"""Measure what a pass that verifies drafts costs, against a plain one over the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Weight of the newest plain pass in the average.
_NEWEST = 0.2
#: A plain pass counts at most as this many average ones; another process may have interrupted it.
_OUTLIER = 2.0
#: Least cost of a draft, in tokens.
COST_MIN = 0.1
#: Most cost of a position for each row, in tokens; another process may have interrupted the pass.
ROW_COST_MAX = 2.0


class PassTimes:
    """The duration of plain passes by number of rows, and the cost of those with drafts.

    A plain pass is started before the tokens of the one before are read. Its duration is therefore
    the time from one reading to the next.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        #: Average seconds of a plain pass, by rows.
        self._plain: dict[int, float] = {}
        #: Average cost of a drafted position, in tokens, by rows.
        self._position_costs: dict[int, float] = {}
        self._since: float | None = None
        self._was_plain = False

    def position_cost(self, rows: int) -> float:
        """Return what each position of a draft costs a pass, in tokens; 0 where it is unknown.

        All rows of a pass are as long as its longest draft.
        """
        return self._position_costs.get(rows, 0.0)

    def interrupt(self) -> None:
        """Leave out the time until the next pass: something else runs in between."""
        self._since = None

    def record_reading(self) -> None:
        """Record that the tokens of the last pass are read; a pass with drafts may start."""
        if self._was_plain or self._since is None:
            self._since = self._clock()

    def record_plain(self, rows: int) -> None:
        """Record a plain pass."""
        now = self._clock()
        if self._since is not None and self._was_plain:
            seconds = now - self._since
            average = self._plain.setdefault(rows, seconds)
            self._plain[rows] += _NEWEST * (min(seconds, _OUTLIER * average) - average)
        self._since, self._was_plain = now, True

    def record_drafts(self, rows: int, drafting: int, positions: int) -> float:
        """Record a pass with drafts.

        Args:
            rows: Rows of the pass.
            drafting: How many of them had a draft.
            positions: Length of the longest draft.

        Returns:
            The cost for each row with a draft: what the pass took longer than a plain one, times
            the tokens that a plain one draws.
        """
        since, now = self._since, self._clock()
        self._since, self._was_plain = now, False
        plain = self._plain.get(rows)
        if since is None or not plain:
            return COST_MIN
        longer = max(0.0, (now - since) / plain - 1)
        cost = min(longer, ROW_COST_MAX * positions) * rows
        known = self._position_costs.setdefault(rows, cost / positions)
        self._position_costs[rows] += _NEWEST * (cost / positions - known)
        return max(COST_MIN, cost / drafting)
