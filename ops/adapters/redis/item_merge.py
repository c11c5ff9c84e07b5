"""What one reader of a stream has, lacks and waits for; no I/O.

Items reach a reader by two ways: announced live, and read back from the store in pages. Whichever
way an item comes, it is taken if its number is the next one and there is room, and dropped
otherwise. A number that cannot be taken means that the live way has run ahead of the reader: it
*lags*, and looks into the store once its buffer is empty. So nothing is lost, said twice or out of
order whatever is dropped, repeated or cut off on the way, and memory stays bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from domain.chat.items import StreamItem

#: Items that wait in memory for one reader.
BUFFER_ITEMS_MAX = 1024
#: Their size as JSON; one item is taken even if it is larger.
BUFFER_BYTES_MAX = 256 * 1024


class ItemMerge:
    """The buffer of one reader.

    Args:
        after: Last number that the reader has already.
        items_max: Items that may wait.
        bytes_max: Bytes that may wait.
    """

    def __init__(
        self,
        *,
        after: int = -1,
        items_max: int = BUFFER_ITEMS_MAX,
        bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self._next = after + 1
        self._items: deque[tuple[int, StreamItem]] = deque()
        self._bytes = 0
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._lagging = True
        self._announced_meanwhile = False
        self._cursor: tuple[int, int] | None = None if after < 0 else (1, after)
        self._end_beyond_hole = -1
        self._broken = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def buffered_bytes(self) -> int:
        """Size of what waits."""
        return self._bytes

    @property
    def cursor(self) -> tuple[int, int] | None:
        """Attempt and number after which the store is to be read; ``None``: from its beginning."""
        return self._cursor

    @property
    def needs_page(self) -> bool:
        """Whether the reader can only go on from the store."""
        return self._lagging and not self._items

    @property
    def is_broken(self) -> bool:
        """Whether the job has ended but items before its end are nowhere to be had."""
        return self._broken and not self._items

    def take(self) -> StreamItem | None:
        """Return the next item, if one waits."""
        if not self._items:
            return None
        size, item = self._items.popleft()
        self._bytes -= size
        return item

    def lag(self) -> None:
        """Note that announcements may have been missed."""
        self._lagging = True
        self._announced_meanwhile = True

    def announced(self, item: StreamItem, size: int) -> bool:
        """Take an announced item, or note that it must be fetched.

        Returns:
            Whether the reader may have something to do now.
        """
        if item.n is None:
            return not self._lagging and self._put(item, size)
        if item.n < self._next:
            return False
        if item.n == self._next and self._put(item, size):
            self._advance(item)
            # All before it is known and all after it will be announced.
            self._lagging = False
            return True
        self.lag()
        return True

    def begin_page(self) -> None:
        """Say that the store is about to be read from ``cursor``."""
        self._announced_meanwhile = False

    def page(self, items: Sequence[tuple[int, StreamItem]], *, is_last: bool) -> None:
        """Take what the store gave.

        Args:
            items: Sizes and items after ``cursor``, in the order of the store.
            is_last: Whether the store had no more when it was read.
        """
        for size, item in items:
            assert item.n is not None, "never stored"  # noqa: S101 - states what callers must not do
            if item.n == self._next:
                if not self._put(item, size):
                    return
                self._advance(item)
            elif item.is_terminal:
                self._end_beyond_hole = item.n
            self._pass_by(item)
        if not is_last:
            return
        self._broken = self._next <= self._end_beyond_hole
        # What was announced while the page was on its way may be missing from it.
        self._lagging = self._announced_meanwhile

    def _put(self, item: StreamItem, size: int) -> bool:
        full = len(self._items) >= self._items_max or self._bytes + size > self._bytes_max
        if full and self._items:
            return False
        self._items.append((size, item))
        self._bytes += size
        return True

    def _advance(self, item: StreamItem) -> None:
        self._next += 1
        self._pass_by(item)

    def _pass_by(self, item: StreamItem) -> None:
        assert item.n is not None, "never stored"  # noqa: S101 - states what callers must not do
        here = (item.attempt, item.n)
        if self._cursor is None or here > self._cursor:
            self._cursor = here
