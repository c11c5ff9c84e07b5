"""Bounds the memory of requests that are prepared at the same time.

A parsed request and its prompt need several times the bytes of its payload. Many threads may begin
long requests at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Final

#: Bytes of payloads that are prepared at the same time.
PREPARED_BYTES_MAX: Final = 64 << 20


class RequestGate:
    """Lets requests be prepared one beside the other as long as their payloads are small.

    Args:
        bytes_max: Bytes of payloads at the same time. A larger payload is prepared alone.
    """

    def __init__(self, bytes_max: int = PREPARED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = Condition()
        self._reads = Lock()

    @contextmanager
    def read(self, read: Callable[[], bytes]) -> Iterator[bytes]:
        """Return a payload for the length of a ``with`` block, as soon as there is room for it.

        Args:
            read: Reads the payload. It is called while no other payload waits for room, so at most
                one payload is in memory beside those that have room.
        """
        with self._reads:
            payload = read()
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._bytes or self._bytes + len(payload) <= self._bytes_max
                )
                self._bytes += len(payload)
        try:
            yield payload
        finally:
            with self._changed:
                self._bytes -= len(payload)
                self._changed.notify_all()
