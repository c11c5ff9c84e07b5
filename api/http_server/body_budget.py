"""The bytes of all request bodies that the process holds."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from api.http.messages import UNIDENTIFIED, Caller
from api.http_server.errors import too_many_bodies, too_many_bodies_of_one
from api.http_server.peer_counts import peer_of
from domain.usage.shares import Shares

#: First bytes of each body, which are not counted: small requests pass while large ones fill the
#: budget.
FREE_BYTES: Final = 65_536


class BodyBudget:
    """Counts bytes of bodies; belongs to one event loop.

    Args:
        bytes_max: Most bytes of all bodies beyond the first ``FREE_BYTES`` of each; keys and
            addresses have shares of it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes = Shares(bytes_max)

    @property
    def held_bytes(self) -> int:
        """Counted bytes of the bodies that are held."""
        return self._bytes.held

    def share(self, address: str, caller: Caller) -> BodyShare:
        """Return the share of a new body.

        It counts against the key, if there are several, and against the address. A proxy on this
        machine is one address for all, so there only requests without a key count against it.
        """
        peer, is_local = peer_of(address)
        holders = [] if caller.sharer is None else [f"key {caller.sharer}"]
        if not is_local or caller == UNIDENTIFIED:
            holders.append(f"address {peer}")
        return BodyShare(self._bytes, holders)


class BodyShare:
    """The bytes of one body; a context in which the body is held."""

    def __init__(self, budget: Shares, holders: Sequence[str]) -> None:
        self._budget = budget
        self._holders = holders
        self._size_bytes = 0
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count further bytes, before they are kept.

        Raises:
            BrokenFraming: The budget is used up, 503, or the share of the key or the address, 429;
                the request may be repeated.
        """
        self._size_bytes += size_bytes
        more_bytes = max(0, self._size_bytes - FREE_BYTES) - self._taken_bytes
        found = self._budget.take(self._holders, more_bytes)
        if found is not None:
            full = too_many_bodies_of_one if found.of_holder else too_many_bodies
            raise full(found.limit)
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
        self._budget.give_back(self._holders, self._taken_bytes)
        self._taken_bytes = 0
