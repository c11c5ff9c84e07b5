"""Waiting for a condition that another thread or process makes true."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Longest wait for something that is quick on an idle machine.
WITHIN_S = 60.0


def wait_until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Return as soon as ``condition`` holds.

    Raises:
        AssertionError: It did not hold in time.
    """
    give_up_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise AssertionError(f"the condition did not hold within {within_s} s")
        time.sleep(0.005)
