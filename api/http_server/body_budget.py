"""The bytes of all request bodies that the process holds."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from api.http_server.errors import too_many_bodies

#: First bytes of each body, which are not counted: small requests pass while large ones fill the
#: budget.
FREE_BYTES: Final = 65_536


class BodyBudget:
    """Counts bytes of bodies; belongs to one event loop.

    Args:
        bytes_max: Most bytes of all bodies beyond the first ``FREE_BYTES`` of each.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Counted bytes of the bodies that are held.
        self.held_bytes = 0

    def share(self) -> BodyShare:
        """Return the share of a new body."""
        return BodyShare(self)

    def take(self, size_bytes: int) -> None:
        """Count bytes before they are kept.

        Raises:
            BrokenFraming: The budget is used up; 503, and the request may be repeated.
        """
        if self.held_bytes + size_bytes > self._bytes_max:
            raise too_many_bodies(self._bytes_max)
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop to count bytes that are no longer held."""
        self.held_bytes -= size_bytes


class BodyShare:
    """The bytes of one body; a context in which the body is held."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size_bytes = 0
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count further bytes.

        Raises:
            BrokenFraming: The budget is used up.
        """
        self._size_bytes += size_bytes
        more_bytes = max(0, self._size_bytes - FREE_BYTES) - self._taken_bytes
        self._budget.take(more_bytes)
        self._taken_bytes += more_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self._budget.give_back(self._taken_bytes)
        self._taken_bytes = 0
