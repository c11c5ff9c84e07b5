"""Which types of JSON a schema lets a value have, and what a text between marks stands for.

Between marks a string is written as it is, and everything else as JSON. So it is the schema that
says what ``5`` stands for.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson

ALL_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING_ONLY: Final = frozenset({"string"})
#: References followed one after the other.
_REFERENCES_MAX: Final = 16
#: What people write who think in Python.
_SLOPPY: Final[Mapping[str, str]] = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}
#: What a value that is no string can begin with.
_JSON_BEGINS: Final = frozenset("{[-0123456789tfn")
_KINDS: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}
_LITERALS: Final[Mapping[str, tuple[str, str]]] = {
    "true": ("boolean", "true"),
    "false": ("boolean", "false"),
    "null": ("null", "null"),
    "none": ("null", "null"),
}


def types_of(schema: object, root: Mapping[str, Any], *, depth: int = 0) -> frozenset[str]:
    """Return the types that a schema allows; a ``number`` that may be whole is both.

    Args:
        schema: Any; what is no schema allows everything.
        root: Where its references point into.
        depth: References followed so far.
    """
    if schema is False:
        return frozenset()
    if not isinstance(schema, Mapping) or depth > _REFERENCES_MAX:
        return ALL_TYPES
    kinds = _of_types(schema.get("type")) & _of_values(schema)
    for wanted in _parts(schema, root):
        kinds &= frozenset().union(*(types_of(one, root, depth=depth + 1) for one in wanted))
    return kinds


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[list[object]]:
    """Return what must be matched as well, each a list of choices."""
    parts: list[list[object]] = [
        schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)
    ]
    wanted = schema.get("allOf")
    parts += [[part] for part in wanted] if isinstance(wanted, list) else []
    if isinstance(schema.get("$ref"), str):
        parts.append([resolve_reference(schema["$ref"], root)])
    return parts


def _of_values(schema: Mapping[str, Any]) -> frozenset[str]:
    kinds = ALL_TYPES if "const" not in schema else frozenset({type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        kinds &= {type_of(value) for value in schema["enum"]}
    return kinds


def argument_schema(schema: Mapping[str, Any], name: str) -> object:
    """Return what an argument must match, by the schema of all of them."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties", True)


def resolve_reference(reference: str, root: Mapping[str, Any]) -> object:
    """Return what a reference points to inside a schema, ``True`` if that is nowhere.

    Args:
        reference: ``#`` and a JSON pointer (RFC 6901).
        root: The schema.
    """
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not reference.startswith("#") or not isinstance(place, Mapping) or name not in place:
            return True
        place = place[name]
    return place if reference.startswith("#") else True


def type_of(value: object) -> str:
    """Return the narrowest type of a value."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "object"
    return _KINDS.get(type(value), "array")


def value_json(text: str, kinds: frozenset[str]) -> str:
    """Return the JSON that a text between marks stands for.

    Where a string is allowed, a text is JSON only if it is exactly so and of another type that is
    allowed. Where none is, what models write instead of JSON is understood: Python's literals, and
    at last a string all the same.
    """
    if "string" in kinds or not kinds:
        found = None if kinds <= STRING_ONLY or text != text.strip() else _json_in(text)
        is_other = found is not None and type_of(json.loads(found)) in kinds - STRING_ONLY
        return found if found is not None and is_other else json_string(text)
    said = text.strip()
    kind, literal = _LITERALS.get(said.lower(), ("", ""))
    if kind in kinds:
        return literal
    found = _json_in(said)
    return found if found is not None else _python_in(said)


def json_string(text: str) -> str:
    """Return a text as a string of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _of_types(types: object) -> frozenset[str]:
    named = [types] if isinstance(types, str) else types
    if not isinstance(named, list):
        return ALL_TYPES
    kinds = {_SLOPPY.get(name, name) for name in named if isinstance(name, str)} & ALL_TYPES
    # A type that nobody knows says nothing.
    return frozenset(kinds | {"integer"} if "number" in kinds else kinds) or ALL_TYPES


def _json_in(text: str) -> str | None:
    """Return a text as valid JSON, ``None`` if it is not one value, or a string."""
    if text[:1] not in _JSON_BEGINS:
        return None
    value, said = JsonValue(), ""
    try:
        for char in text:
            if value.is_complete:
                return None
            piece = value.feed(char)
            if piece is None:
                return None
            said += piece
        json.loads(said)
    except (MalformedJson, ValueError):
        return None
    return said


def _python_in(text: str) -> str:
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json_string(text)
