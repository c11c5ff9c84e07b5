"""Turn token ids into text, one token at a time, in complete characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

#: Most tokens held back for the rest of a character; more tokens form no character.
INCOMPLETE_TOKENS_MAX = 16
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Decodes one growing sequence of tokens; a pure function of the tokens fed, in order."""

    def feed(self, token: int) -> str:
        """Feed a token and return the text that it completes, "" inside a character."""
        ...

    def flush(self) -> str:
        """Return the rest of the text at the end; an incomplete character becomes U+FFFD."""
        ...

    def copied(self) -> Detokenizer:
        """Return one that continues from the same tokens by itself."""
        ...


class ByteDetokenizer:
    """``Detokenizer`` for vocabularies of byte strings: byte-level BPE, SentencePiece with bytes.

    Args:
        table: Bytes of each token id; shared by all instances.
        strip_first_space: Drop one space at the beginning of the text, as SentencePiece does.
    """

    def __init__(self, table: Sequence[bytes], *, strip_first_space: bool = False) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_first_space

    def feed(self, token: int) -> str:
        """Feed a token and return the text that it completes."""
        return self._stripped(self._decoder.decode(self.bytes_of(token)))

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token."""
        # A padded output layer has ids without a token.
        return self._table[token] if token < len(self._table) else b""

    def flush(self) -> str:
        """Return the rest of the text at the end."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def copied(self) -> ByteDetokenizer:
        """Return one that continues from the same tokens by itself."""
        other = ByteDetokenizer(self._table, strip_first_space=self._strip)
        other._decoder.setstate(self._decoder.getstate())
        return other

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """``Detokenizer`` for others: decodes a short window again and returns what it has grown by."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        #: ``_ids[:_decoded]`` is decoded already; it stays in the window because the text of a
        #: token may depend on the token before.
        self._ids: list[int] = []
        self._decoded = 0

    def feed(self, token: int) -> str:
        """Feed a token and return the text that it completes."""
        self._ids.append(token)
        before, now = self._decode(self._ids[: self._decoded]), self._decode(self._ids)
        waiting = len(self._ids) - self._decoded
        if now.endswith(_REPLACEMENT) and waiting < INCOMPLETE_TOKENS_MAX:
            return ""
        self._ids = self._ids[self._decoded :]
        self._decoded = len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """Return the rest of the text at the end."""
        before, now = self._decode(self._ids[: self._decoded]), self._decode(self._ids)
        self._decoded = len(self._ids)
        return now[len(before) :]

    def copied(self) -> WindowDetokenizer:
        """Return one that continues from the same tokens by itself."""
        other = WindowDetokenizer(self._decode)
        other._ids, other._decoded = self._ids[:], self._decoded
        return other
