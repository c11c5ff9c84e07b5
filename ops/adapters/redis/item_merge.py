"""Merges announced and stored items for one reader of a stream; no I/O.

Items arrive in two ways: announced live, and read from the store in pages. An item is taken if its
number is the next one and the buffer has room, and dropped otherwise. An announced number that
cannot be taken means that the reader *lags*: it reads the store once its buffer is empty. So every
item is emitted exactly once and in order, whatever announcements are lost or repeated, and memory
stays bounded.

The first item of a later epoch is taken too: the answer begins anew. Buffered items of the epoch
before are dropped then, and later ones are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from domain.chat.items import StreamItem

#: Most items in the buffer of one reader.
BUFFER_ITEMS_MAX = 1024
#: Most bytes of JSON in the buffer; a single larger item is taken.
BUFFER_BYTES_MAX = 256 * 1024


class ItemMerge:
    """The buffer of one reader.

    Args:
        after: Last number that the reader has.
        epoch: Epoch of that number.
        items_max: Most items in the buffer.
        bytes_max: Most bytes in the buffer.
    """

    def __init__(
        self,
        *,
        after: int = -1,
        epoch: int = 1,
        items_max: int = BUFFER_ITEMS_MAX,
        bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self._next = after + 1
        self._epoch = epoch
        self._items: deque[tuple[int, StreamItem]] = deque()
        self._bytes = 0
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._lagging = True
        self._announced_meanwhile = False
        # Ids sort by attempt first, and an epoch has the number of its first attempt.
        self._cursor: tuple[int, int] | None = None if after < 0 else (epoch, after)
        #: Epoch and number of a terminal item that cannot be taken.
        self._end_beyond_gap = (0, -1)
        self._broken = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def cursor(self) -> tuple[int, int] | None:
        """Attempt and number to read the store after; ``None`` to read from the beginning."""
        return self._cursor

    @property
    def needs_page(self) -> bool:
        """Whether the next item must come from the store."""
        return self._lagging and not self._items

    @property
    def is_broken(self) -> bool:
        """Whether the job has ended and the store lacks items before its end."""
        return self._broken and not self._items

    def take(self) -> StreamItem | None:
        """Return the next buffered item; ``None`` if there is none."""
        if not self._items:
            return None
        size, item = self._items.popleft()
        self._bytes -= size
        return item

    def lag(self) -> None:
        """Record that announcements may have been missed."""
        self._lagging = True
        self._announced_meanwhile = True

    def announced(self, item: StreamItem, size: int) -> bool:
        """Buffer an announced item, or record that it must be read from the store.

        Returns:
            Whether the reader can make progress.
        """
        if item.n is None:
            is_present = item.epoch == self._epoch and not self._lagging
            return is_present and self._put(item, size)
        if (item.epoch, item.n) < (self._epoch, self._next):
            return False
        if self._take(item, size):
            # All items before it are known, and all items after it will be announced.
            self._lagging = False
            return True
        self.lag()
        return True

    def begin_page(self) -> None:
        """Record that a read of the store from ``cursor`` begins."""
        self._announced_meanwhile = False

    def page(self, items: Sequence[tuple[int, StreamItem]], *, is_last: bool) -> None:
        """Buffer a page of the store.

        Args:
            items: Sizes and items after ``cursor``, in the order of the store.
            is_last: Whether the store had no more when it was read.
        """
        for size, item in items:
            assert item.n is not None, "never stored"  # noqa: S101 - a contract of the caller
            if self._is_next(item):
                if not self._take(item, size):
                    return
            elif item.is_terminal:
                self._end_beyond_gap = (item.epoch, item.n)
            self._move_cursor(item)
        if not is_last:
            return
        self._broken = (self._epoch, self._next) <= self._end_beyond_gap
        # The page may lack items that were announced while it was read.
        self._lagging = self._announced_meanwhile

    def _put(self, item: StreamItem, size: int) -> bool:
        full = len(self._items) >= self._items_max or self._bytes + size > self._bytes_max
        if full and self._items:
            return False
        self._items.append((size, item))
        self._bytes += size
        return True

    def _is_next(self, item: StreamItem) -> bool:
        if item.epoch == self._epoch:
            return item.n == self._next
        return item.epoch > self._epoch and item.n == 0

    def _take(self, item: StreamItem, size: int) -> bool:
        """Buffer a numbered item if it is the next one and there is room."""
        if not self._is_next(item):
            return False
        if item.epoch > self._epoch:
            self._epoch, self._next, self._bytes = item.epoch, 0, 0
            self._broken = False
            self._items.clear()
        if not self._put(item, size):
            return False
        self._next += 1
        self._move_cursor(item)
        return True

    def _move_cursor(self, item: StreamItem) -> None:
        assert item.n is not None, "never stored"  # noqa: S101 - a contract of the caller
        here = (item.attempt, item.n)
        if self._cursor is None or here > self._cursor:
            self._cursor = here
