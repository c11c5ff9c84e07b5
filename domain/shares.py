"""Shares of what all API keys have in common: places of a queue, open batches, bytes of bodies.

One holder gets at most half of what the others leave: a half alone, a third where two take all they
can, and so on. However many take their share, the next one finds room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from domain.errors import Overloaded, RateLimited


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why there is no room: the limit, and whether it is the share of one holder."""

    limit: int
    of_holder: bool


def share_of(total: int, *, others: int = 0) -> int:
    """Return the most that one holder may have while the others have ``others``: half of the rest.

    >>> share_of(9), share_of(9, others=5), share_of(9, others=9)
    (5, 2, 0)
    """
    return max(0, -(-(total - others) // 2))


def shortage(total: int | None, *, held: int, mine: int | None, size: int = 1) -> Shortage | None:
    """Return why ``size`` more has no room, ``None`` if it has.

    Args:
        total: The limit of all holders; ``None``: any.
        held: What all have.
        mine: What this holder has of it; ``None`` for one without a share.
        size: What it wants.
    """
    if total is None:
        return None
    if held + size > total:
        return Shortage(total, of_holder=False)
    if mine is not None and mine + size > (most := share_of(total, others=held - mine)):
        return Shortage(most, of_holder=True)
    return None


def require_one_more(
    total: int, *, held: int, mine: int | None, what: str, hint: str, retry_after_s: int = 60
) -> None:
    """Refuse one more thing where ``total`` of them may exist; see ``shortage``.

    Args:
        what: The things, in the plural.
        hint: What makes room.

    Raises:
        Overloaded: Naming the limit.
        RateLimited: Naming the share of the holder.
    """
    found = shortage(total, held=held, mine=mine)
    if found is None:
        return
    if found.of_holder:
        full = f"this key may have {found.limit} of the {total} {what}; {hint}"
        raise RateLimited(full, retry_after_s=retry_after_s)
    raise Overloaded(f"there are {total} {what} already; {hint}", retry_after_s=retry_after_s)


class Shares:
    """What the holders have of one total; belongs to one event loop.

    Args:
        total: The limit of all holders; ``None``: any.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._mine = Counter[str]()
        #: What all holders have.
        self.held = 0

    def take(self, holders: Sequence[str], size: int = 1) -> Shortage | None:
        """Count ``size`` for each of the holders, unless there is no room; return why not."""
        for mine in (None, *(self._mine[holder] for holder in holders)):
            found = shortage(self._total, held=self.held, mine=mine, size=size)
            if found is not None:
                return found
        self.held += size
        self._mine.update(dict.fromkeys(holders, size))
        return None

    def give_back(self, holders: Sequence[str], size: int = 1) -> None:
        """Stop to count what ``take`` has counted."""
        self.held -= size
        for holder in holders:
            self._mine[holder] -= size
            if not self._mine[holder]:
                del self._mine[holder]
