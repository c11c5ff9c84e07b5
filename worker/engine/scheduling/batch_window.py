"""Gather sequences that arrive close together, so that they join the batch in one step.

Pure: the caller passes instants in seconds.
"""

from __future__ import annotations

import math


class BatchWindow:
    """Delays arrivals that follow each other closely.

    An arrival with no other arrival in the window before it is not delayed. Otherwise all arrivals
    wait until one window after the first of them.

    Args:
        window_s: Length in seconds; 0 delays no arrival. It may be changed at any time.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._latest = -math.inf
        self._opened: float | None = None

    def record_arrival(self, at: float) -> None:
        """Open the window, unless it is open already."""
        if self._opened is None:
            follows_another = at - self._latest < self.window_s
            self._opened = at if follows_another else -math.inf
        self._latest = max(at, self._latest)

    def wait_s(self, now: float) -> float:
        """Return how many seconds remain until the arrivals may join."""
        if self._opened is None:
            return 0.0
        return max(0.0, self._opened + self.window_s - now)

    def close(self) -> None:
        """Close the window: the arrivals may join now."""
        self._opened = None
