"""Find the sequence that makes the steps of a batch fail. Pure.

A failed step does not show which of its sequences is the cause. They all leave the batch and run
one at a time, the newest first, until each has passed the point of the failure. A sequence that
fails alone is the culprit; the others then continue together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, TypeVar

#: Steps that take a sequence beyond the point of the failure, until it is cleared. The failure may
#: come while the token of the step before is computed.
STEPS_TO_CLEAR = 2
#: Failed steps in a row of which every sequence was cleared, until the engine itself is at fault.
ROUNDS_MAX = 3
#: Jobs that fail alone, with no successful step in between, until the engine is at fault.
CULPRITS_MAX = 3

T = TypeVar("T")


class Quarantine(Generic[T]):
    """The sequences of a failed step, and which of them may run now.

    Args:
        job_of: Returns the job of a sequence; the attempts of a job have a sequence each.
    """

    def __init__(self, job_of: Callable[[T], Hashable]) -> None:
        self._job_of = job_of
        #: Not tried yet, the newest last.
        self._suspects: list[T] = []
        self._tried: T | None = None
        self._steps = 0
        self._rounds = 0
        self._culprits: set[Hashable] = set()

    @property
    def is_active(self) -> bool:
        """Whether only one sequence may run, the one that ``admits`` accepts."""
        return self._tried is not None

    def admits(self, sequence: T) -> bool:
        """Return whether a sequence may join the batch."""
        return self._tried is None or self._tried == sequence

    def record_failure(self, sequences: Sequence[T]) -> T | None:
        """Record a failed step and start to try its sequences.

        Args:
            sequences: The sequences of the step, the newest last; at least one.

        Returns:
            The culprit, if it is known. The others may continue together.
        """
        assert sequences, "a step has a sequence"
        if len(sequences) > 1:
            self._rounds += 1
            self._suspects = list(sequences)
            self._try_next()
            return None
        self._suspects, self._tried = [], None
        self._rounds = 0
        self._culprits.add(self._job_of(sequences[0]))
        return sequences[0]

    def is_hopeless(self) -> bool:
        """Return whether the cause is not one of the sequences but the engine or the device."""
        return self._rounds >= ROUNDS_MAX or len(self._culprits) >= CULPRITS_MAX

    def record_success(self, advanced: Collection[T]) -> T | None:
        """Record a successful step.

        Args:
            advanced: The sequences that are further than ever before.

        Returns:
            A cleared sequence that leaves the batch, so that the next one can run alone.
        """
        self._culprits.clear()
        if self._tried is None:
            # A step of one sequence shows nothing about the others.
            self._rounds = 0 if len(advanced) > 1 else self._rounds
            return None
        self._steps += any(one == self._tried for one in advanced)
        if self._steps < STEPS_TO_CLEAR:
            return None
        cleared = self._tried
        self._try_next()
        return cleared if self.is_active else None

    def forget(self, sequence: T) -> None:
        """Drop a sequence that has ended, in whatever way."""
        self._suspects = [one for one in self._suspects if one != sequence]
        if self._tried == sequence:
            self._try_next()

    def _try_next(self) -> None:
        self._steps = 0
        self._tried = self._suspects.pop() if self._suspects else None
