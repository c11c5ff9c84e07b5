"""Bounds on the number of values in a JSON text, checked before a value of it exists.

The parser of the standard library, and each faster one that was measured, holds the interpreter's
lock for the whole text, so one body of short values would stop the streams of all clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from domain.errors import InvalidRequest

#: Bytes that are examined between two chances for other threads.
_SLICE_BYTES: Final = 32_768
#: All bytes but quotes, what stands before a key or a value, and the ends of objects.
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'",:[{}')


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBounds:
    """Most values of a JSON text.

    Attributes:
        values_max: Values of any kind, and keys.
        containers_max: Arrays and objects, which take the most time and memory.
    """

    values_max: int
    containers_max: int


#: A request: a prompt of 2^18 token ids, or some 15,000 messages with one block each.
REQUEST: Final = JsonBounds(values_max=300_000, containers_max=50_000)
#: A Message Batch of up to 100,000 requests.
BATCH: Final = JsonBounds(values_max=4_000_000, containers_max=1_000_000)


def check_values(body: bytes, bounds: JsonBounds) -> None:
    """Refuse a text of too many values.

    Other threads run only at the ends of objects while a text is parsed, so ``REQUEST`` also bounds
    the values between two ends of objects.

    Raises:
        InvalidRequest: With the bound that is exceeded.
    """
    if len(body) <= REQUEST.containers_max:
        return
    values = containers = run_values = run_containers = 0
    for marks in _marks(body):
        for index, part in enumerate(marks.split(b"}")):
            if index:
                run_values = run_containers = 0
            opened = part.count(b"[") + part.count(b"{")
            met = opened + part.count(b",") + part.count(b":")
            values, containers = values + met, containers + opened
            run_values, run_containers = run_values + met, run_containers + opened
            _require(run_values, run_containers, REQUEST)
            _require(values, containers, bounds)


def _require(values: int, containers: int, bounds: JsonBounds) -> None:
    if containers > bounds.containers_max:
        msg = f"the body has more than {bounds.containers_max} arrays and objects"
        raise InvalidRequest(msg)
    if values > bounds.values_max:
        msg = f"the body has more than {bounds.values_max} keys and values"
        raise InvalidRequest(msg)


def _marks(body: bytes) -> Iterator[bytes]:
    """Yield what ``_OTHERS`` leaves outside of strings, slice by slice."""
    start, inside = 0, False
    while start < len(body):
        end = _slice_end(body, start)
        piece, start = body[start:end], end
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.translate(None, _OTHERS).split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0


def _slice_end(body: bytes, start: int) -> int:
    """Return the end of a slice that does not divide an escape."""
    piece = body[start : start + _SLICE_BYTES]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return start + len(piece) + backslashes % 2
