"""Compares the memory in use with the accounts; pure."""

from __future__ import annotations

import structlog

_log = structlog.get_logger(__name__)

#: Smallest difference that is no rounding of the allocator and no constant of a library, in bytes.
TOLERANCE_BYTES_MIN = 16 << 20


class MemoryWatch:
    """Finds memory that the accounts do not know, and steps that take more than was measured.

    Between two steps the process should hold the weights, what is accounted (rows, parked segments,
    copies in flight) and at most the working set of the step that is being computed:

        active = weights + accounted + (0 to step) + unknown

    Unknown bytes, and those of a step above its measure, are withheld from the budget of contexts:
    what no longer fits is to be freed before the next step.

    Args:
        weights_bytes: Bytes in use without any context.
        step_bytes: Measured working set of a step, which the budget leaves room for; ``None`` where
            none was measured and the budget is pinned.
        budget_bytes: Budget of all contexts.
        peak_bytes: The highest peak so far.
    """

    def __init__(
        self,
        *,
        weights_bytes: int,
        step_bytes: int | None,
        budget_bytes: int,
        peak_bytes: int = 0,
    ) -> None:
        assert min(weights_bytes, step_bytes or 0, budget_bytes) >= 0, "sizes are not negative"
        self._weights_bytes = weights_bytes
        self._planned_step_bytes = step_bytes
        self._budget_bytes = budget_bytes
        self._peak_bytes = peak_bytes
        self._active_bytes = weights_bytes
        self._is_over = False
        #: Largest working set of a step, as measured at load or seen since.
        self.step_bytes = step_bytes or 0

    def withheld_bytes(self, *, active: int, peak: int, accounted: int) -> int:
        """Return the bytes to withhold from the budget. Call once before each step.

        Args:
            active: Bytes in use.
            peak: The most that was in use since any moment before the last call.
            accounted: Bytes of rows, parked segments and copies in flight.
        """
        self._correct_step(active, peak)
        tolerance = max(self.step_bytes, TOLERANCE_BYTES_MIN)
        unknown = max(0, active - self._weights_bytes - accounted - tolerance)
        planned = self._planned_step_bytes
        longer_step = 0 if planned is None else self.step_bytes - planned
        withheld = unknown + longer_step
        self._report(unknown, max(0, accounted + withheld - self._budget_bytes))
        return withheld

    def _correct_step(self, active: int, peak: int) -> None:
        """Learn from a new highest peak; it belongs to the step since the last call."""
        if peak > self._peak_bytes:
            # Contexts that grew in between are in use now, those that ended were before.
            self.step_bytes = max(self.step_bytes, peak - max(active, self._active_bytes))
        # A lower peak was reset by a reader of it.
        self._peak_bytes, self._active_bytes = peak, active

    def _report(self, unknown: int, over: int) -> None:
        """Log the begin of each episode."""
        if (unknown > 0 or over > 0) and not self._is_over:
            _log.warning(
                "memory_over_accounts",
                unknown_mb=unknown >> 20,
                shed_mb=over >> 20,
                step_mb=self.step_bytes >> 20,
                planned_step_mb=(self._planned_step_bytes or 0) >> 20,
            )
        self._is_over = unknown > 0 or over > 0
