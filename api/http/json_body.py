"""JSON bodies within bounds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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


#: Levels of objects and arrays in a body. Real tool schemas stay below 20; the limit keeps every
#: recursive walk behind it far from the interpreter's own limit.
NESTING_MAX: Final = 64

_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def load_json(body: bytes | str, bounds: JsonBounds = REQUEST) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value of ``body``.

    Raises:
        InvalidRequest: It is not UTF-8, not JSON, nested too deep, of too many values, names a key
            twice, or holds a number or text that no JSON reader agrees on (NaN, infinities, lone
            surrogates).
    """
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    check_values(raw, bounds)
    try:
        value = json.loads(
            body.decode("utf-8") if isinstance(body, bytes) else body,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        msg = f"the body is not UTF-8 (byte {error.start})"
        raise InvalidRequest(msg) from error
    except RecursionError as error:
        raise InvalidRequest(_too_deep()) from error
    except ValueError as error:
        # Also an integer of more digits than the interpreter converts.
        msg = f"the body is not valid JSON: {error}"
        raise InvalidRequest(msg) from error
    _check_depth(value)
    if _MAYBE_SURROGATE.search(raw):
        _check_text(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            msg = f"the key {key!a} stands twice in one object"
            raise InvalidRequest(msg)
        seen.add(key)
    raise AssertionError  # fewer members than pairs means a repeated key


def _refuse_constant(name: str) -> float:
    msg = f"{name} is not a JSON number"
    raise InvalidRequest(msg)


def _finite(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    msg = f"the number {text[:32]} is too large"
    raise InvalidRequest(msg)


def _check_depth(value: Any) -> None:  # noqa: ANN401 - any JSON value
    level = [value]
    for _ in range(NESTING_MAX):
        level = [child for node in level for child in _containers(node)]
        if not level:
            return
    raise InvalidRequest(_too_deep())


def _containers(node: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in children if isinstance(child, dict | list)]


def _check_text(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Refuse halves of surrogate pairs, which no tokeniser and no UTF-8 writer can take."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        msg = "the body holds half of a surrogate pair (an unpaired \\ud800 to \\udfff escape)"
        raise InvalidRequest(msg) from error


def _too_deep() -> str:
    return f"the body is nested deeper than {NESTING_MAX} levels"
