"""Writers that append to a log in memory at the same time."""

from __future__ import annotations

from typing import Any

from domain.errors import ConcurrencyConflict
from domain.values import StreamName
from tests.support.fakes.event_log import InMemoryEventLog


class ConflictingAppends:
    """Lets other writers append to a log first, so many times.

    Attributes:
        left: Appends that still conflict.
        tries: Appends that were tried.
    """

    def __init__(self, log: InMemoryEventLog, count: int) -> None:
        self.left, self.tries = count, 0
        self._append = log.append
        log.append = self  # type: ignore[method-assign]  # a race

    def __call__(self, stream: StreamName, *args: Any, **kwargs: Any) -> Any:
        self.tries += 1
        if self.left:
            self.left -= 1
            raise ConcurrencyConflict(stream, expected=1, actual=2)
        return self._append(stream, *args, **kwargs)
