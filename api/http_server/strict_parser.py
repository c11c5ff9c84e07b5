"""The parser of requests, without what RFC 9112 lets a server refuse."""

from __future__ import annotations

import re
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

#: A line that ends without CR LF (RFC 9112 §2.2), or is continued on the next one (§5.2). Parsers
#: do not agree on them, so a request could hide in another one.
_LAX_LINE: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\r\n[ \t]")
_END: Final = b"\r\n\r\n"


class _StrictBuffer(ReceiveBuffer):
    """Refuses lax lines of heads and trailers, which h11 accepts."""

    def __init__(self) -> None:
        super().__init__()
        self._examined = 0

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to the empty one, ``None`` before that has come.

        Raises:
            LocalProtocolError: A line ends without CR LF, or is folded.
        """
        if not self._data.startswith(b"\r\n"):
            # The end of what was examined may be the first part of a lax line.
            start = max(0, self._examined - len(_END))
            end = self._data.find(_END, start)
            until = len(self._data) if end < 0 else end + len(_END)
            if _LAX_LINE.search(self._data, start, until):
                message = "a line is folded or does not end with CR LF"
                raise h11.LocalProtocolError(message)
            self._examined = until
        lines = super().maybe_extract_lines()
        if lines is not None:
            self._examined = 0
        return lines


def request_parser(head_bytes_max: int) -> h11.Connection:
    """Return the parser of one client's connection.

    Args:
        head_bytes_max: Bytes of a head, of a chunk line and of trailers.
    """
    parser = h11.Connection(h11.SERVER, head_bytes_max)
    # h11 has no setting for it; its version is pinned, and a test sends such lines.
    parser._receive_buffer = _StrictBuffer()  # noqa: SLF001
    return parser
