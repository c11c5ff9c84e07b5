"""Finds a step of the engine that does not return. Pure, but for the clock.

The engine thread notes the begin and the end of each step; another thread calls ``check`` at an
interval. The age of a step is counted in checks and not by a clock: the sleep of the machine does
not age it, and a machine with more work than processors ages it more slowly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

#: A step may take so many times as long as the slowest of late, for each token.
SLOWER_MAX = 20.0
#: The first steps of a kind may take so many times the least limit: kernels are compiled, weights
#: are read from the disk, and nothing is measured yet.
FIRST_LIMITS = 5.0
#: Number of these steps.
FIRST_STEPS = 3
#: Weight of an earlier pace against the present one; the slower of the two counts.
DECAY = 0.99
#: Most tokens by which the limit of a step grows. A runner computes long prompts in pieces.
TOKENS_MAX = 2048


class StepKind(StrEnum):
    """The work of the engine thread."""

    ADMIT = "admit"
    PREFILL = "prefill"
    DECODE = "decode"
    SAVE = "save"


@dataclass(frozen=True, slots=True)
class StepSize:
    """The work of a step.

    Attributes:
        kind: What it computes.
        rows: Sequences in it.
        tokens: Tokens that it computes at most.
    """

    kind: StepKind
    rows: int
    tokens: int

    @property
    def words(self) -> str:
        """The work in words."""
        return f"{self.kind} of {self.rows} rows, {self.tokens} tokens"


class StepWatch:
    """The step of one engine thread, and how long it may take.

    Args:
        least_limit_s: Limit of a short step, in seconds; 0 for no limit on any step.
        on_step: Called on the engine thread with each step that begins, and with ``None`` at its
            end; must return within microseconds.
        clock: Seconds.

    Attributes:
        age_s: Seconds since the begin of the present step, as counted in checks.
    """

    def __init__(
        self,
        least_limit_s: float = 0.0,
        *,
        on_step: Callable[[StepSize | None], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._least_limit_s = least_limit_s
        self._on_step = on_step
        self._clock = clock
        #: Seconds for each token, and the number of steps, by kind; the engine thread writes them.
        self._paces: dict[StepKind, tuple[float, int]] = {}
        self._current: tuple[StepSize, float] | None = None
        self._checked: tuple[StepSize, float] | None = None
        self.age_s = 0.0

    @contextmanager
    def step(self, size: StepSize) -> Iterator[None]:
        """Note the begin and the end of a step."""
        started_s = self._clock()
        self._current = size, started_s
        self._on_step(size)
        try:
            yield
            self._record(size, self._clock() - started_s)
        finally:
            self._current = None
            self._on_step(None)

    def limit_s(self, size: StepSize) -> float:
        """Return how long a step may take, in seconds."""
        pace, steps = self._paces.get(size.kind, (0.0, 0))
        if steps < FIRST_STEPS:
            return FIRST_LIMITS * self._least_limit_s
        return max(self._least_limit_s, SLOWER_MAX * pace * _tokens(size))

    def check(self, interval_s: float, *, crowding: float = 1.0) -> str | None:
        """Age the present step; return it in words once it is older than its limit.

        Args:
            interval_s: Seconds since the last check.
            crowding: Threads that want to run for each processor of the machine.
        """
        current = self._current
        if current is None or current is not self._checked:
            # Its age is unknown, and at most one interval.
            self._checked, self.age_s = current, 0.0
            return None
        self.age_s += interval_s / max(1.0, crowding)
        limit_s = self.limit_s(current[0])
        if not self._least_limit_s or self.age_s < limit_s:
            return None
        return f"a step did not return within {limit_s:.0f} s: {current[0].words}"

    def slow_step(self) -> str | None:
        """Return the present step in words once it has taken half of its limit."""
        current, age_s = self._current, self.age_s
        if current is None or current is not self._checked or not self._least_limit_s:
            return None
        if age_s < self.limit_s(current[0]) / 2:
            return None
        return f"{current[0].words} has taken {age_s:.0f} s"

    def _record(self, size: StepSize, seconds: float) -> None:
        pace, steps = self._paces.get(size.kind, (0.0, 0))
        self._paces[size.kind] = max(seconds / _tokens(size), DECAY * pace), steps + 1


def _tokens(size: StepSize) -> int:
    return min(max(size.tokens, 1), TOKENS_MAX)
