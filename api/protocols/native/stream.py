"""Encodes the items of a job as events with ids, from which a client can resume."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from api.http.sse import Comment, Frame, Part
from domain.chat.items import Failed, StreamItem
from domain.errors import InvalidRequest, SemanticError
from domain.log.codec import item_to_dict

#: ``{attempt}-{n}`` as in ``id:`` lines, or ``n`` alone, which counts as of the first attempt.
CURSOR_PATTERN: Final = r"^([0-9]{1,9}-)?[0-9]{1,9}$"
_CURSOR = re.compile(CURSOR_PATTERN)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last item that a client has: its number, -1 for none, and the attempt that emitted it."""

    n: int = -1
    attempt: int = 1


#: The cursor of a client that has no item.
NO_ITEM: Final = Cursor()


class NativeEncoder:
    """Encodes items unchanged; numbered ones carry ``id: {attempt}-{n}``, transient ones none."""

    def __init__(self) -> None:
        self._attempt = 1

    def open(self) -> list[Part]:
        """Return a comment, so that the headers and a first byte are sent at once."""
        return [Comment("open")]

    def item(self, item: StreamItem) -> list[Part]:
        """Return the event of an item."""
        self._attempt = item.attempt
        data = item_to_dict(item)
        name = None if item.n is None else f"{item.attempt}-{item.n}"
        return [Frame(id=name, event=data["kind"], data=data)]

    def ping(self) -> list[Part]:
        """Return a comment."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return a last event without a number: the stream ends, the job may go on."""
        body = Failed(error=error.code, message=error.message, retryable=error.retryable)
        return self.item(StreamItem(n=None, attempt=self._attempt, body=body))


def parse_cursor(text: str | None, *, field: str) -> Cursor:
    """Return the last item that a client has.

    Args:
        text: The cursor of the request, if it has one.
        field: Field of the request that the error names.

    Raises:
        InvalidRequest: The text is not a cursor.
    """
    if text is None:
        return NO_ITEM
    if not _CURSOR.fullmatch(text):
        msg = "a cursor is the id of an event of this stream, such as 1-17"
        raise InvalidRequest(msg, field=field)
    attempt, _, n = text.rpartition("-")
    return Cursor(int(n), max(1, int(attempt or 1)))
