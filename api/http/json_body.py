"""JSON from strangers: every way in which a body can be unreadable becomes one typed error."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from api.http.json_bounds import REQUEST, JsonBounds, check_values
from domain.errors import InvalidRequest

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
