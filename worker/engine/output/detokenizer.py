"""Token ids to text, one at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

#: Tokens that may wait for the rest of a character; more is not a character but noise.
INCOMPLETE_TOKENS_MAX = 16
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one growing token sequence; a function of the tokens fed, in order."""

    def feed(self, token: int) -> str:
        """Take a token and return the text that is complete now, often all of it."""
        ...

    def flush(self) -> str:
        """Return what is left at the end; an incomplete character becomes U+FFFD."""
        ...


class ByteDetokenizer:
    """For vocabularies whose tokens are byte strings: byte-level BPE, SentencePiece with bytes.

    Args:
        table: Bytes of each token id; shared by all instances.
        strip_first_space: Drop one space at the very beginning, as SentencePiece decoders do.
    """

    def __init__(self, table: Sequence[bytes], *, strip_first_space: bool = False) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_first_space

    def feed(self, token: int) -> str:
        """Take a token and return the text that is complete now."""
        return self._stripped(self._decoder.decode(self.bytes_of(token)))

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token stands for."""
        # Padded output layers have ids without a token.
        return self._table[token] if token < len(self._table) else b""

    def flush(self) -> str:
        """Return what is left at the end."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """For every other vocabulary: decodes a short window again and returns how far it grew.

    Args:
        decode: The tokenizer's own function from ids to text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        #: ``_ids[:_told]`` gave text already; it stays in the window because how a token
        #: decodes may depend on the one before.
        self._ids: list[int] = []
        self._told = 0

    def feed(self, token: int) -> str:
        """Take a token and return the text that is complete now."""
        self._ids.append(token)
        before, now = self._decode(self._ids[: self._told]), self._decode(self._ids)
        waiting = len(self._ids) - self._told
        if now.endswith(_REPLACEMENT) and waiting < INCOMPLETE_TOKENS_MAX:
            return ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """Return what is left at the end."""
        before, now = self._decode(self._ids[: self._told]), self._decode(self._ids)
        self._told = len(self._ids)
        return now[len(before) :]
